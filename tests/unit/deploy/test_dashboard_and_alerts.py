"""The dashboard and the alert rules are valid, and whatever they ask for is exposed by the parts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.state import MemoryState
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.stage import TimelineStage
from tests.support import metric_names
from tests.support.docker import REPOSITORY

DASHBOARD: dict[str, Any] = json.loads((REPOSITORY / "deploy/grafana/headrace.json").read_text("utf-8"))
PROMETHEUS = REPOSITORY / "deploy/prometheus"
GROUPS: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text("utf-8"))["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SELECTOR = re.compile(r"(headrace_stage\w*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
IMAGE = "prom/prometheus:latest"


def expressions() -> Iterator[str]:
    """All PromQL of the dashboard and the rules."""
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in RULES)


def test_the_panels_are_named_once_and_do_not_overlap() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & places, panel["title"]
        places |= taken


def test_every_panel_has_a_title_and_asks_for_something() -> None:
    assert len(PANELS) > 30
    for panel in PANELS:
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
        assert all(target["expr"] for target in panel["targets"])
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows[1:4] == ["Bridge", "Registration", "Batching"]


def test_every_rule_says_what_is_wrong_and_how_urgent_it_is() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]


def exposed() -> set[str]:
    return metric_names.streams() | metric_names.bridge() | metric_names.writer() | metric_names.api()


def test_every_metric_of_dashboard_and_rules_is_exposed_by_a_part() -> None:
    used = metric_names.used(expressions())
    assert len(used) > 35
    assert used - exposed() == set()


def test_the_dashboard_shows_every_metric_of_stages_bridge_and_writer() -> None:
    shown = metric_names.used(target["expr"] for panel in PANELS for target in panel["targets"])
    every = metric_names.streams() | metric_names.bridge() | metric_names.writer()
    wanted = {name for name in every if name.startswith("headrace_")}
    assert wanted - shown == {
        name for name in wanted if name.endswith(("latency_seconds_sum", "latency_seconds_count"))
    }


def names_of(metric: str, stage: str) -> set[str]:
    """Values that the label `name` of a metric has for a stage."""
    made: dict[str, Any] = {
        "registration": RegistrationStage(RegistrationConfig()), "batching": BatchingStage(BatchingConfig())
    }  # fmt: skip
    found = set()
    for name, one in made.items():
        if stage in ("", name) and metric == "headrace_stage":
            found |= {*one.gauges(MemoryState()), "too_large", "lost_to_retention"}  # of the worker itself
        elif stage in ("", name) and metric == "headrace_stage_age_seconds":
            found |= set(one.ages(MemoryState()))
    if (metric, stage) == ("headrace_stage", "timeline.*"):
        found = {*TimelineStage(Settings()).gauges(MemoryState()), "refused.NOT_FOUND"}
    if metric == "headrace_stage_root":
        kinds = ("entities.device", "entities.child-device", "entities.service", "dropped.id_in_use")
        found = {*kinds, "automatic", "pending", "telemetry_bytes", "metadata_bytes"}
    return found


def test_every_name_that_is_selected_is_one_that_the_stage_counts() -> None:
    asked = 0
    for expression in expressions():
        for metric, text in SELECTOR.findall(expression):
            labels = {label: (how, value) for label, how, value in MATCHER.findall(text)}
            if "name" not in labels:
                continue
            names = names_of(metric, labels.get("stage", ("", ""))[1])
            how, value = labels["name"]
            for wanted in value.split("|") if how == "=~" else [re.escape(value)]:
                assert any(re.fullmatch(wanted, name) for name in names), (expression, wanted)
                asked += 1
    assert asked > 30


def test_every_count_of_dead_letters_is_in_the_alert_and_in_the_panel_of_them() -> None:
    letters = {name for name in names_of("headrace_stage", "") if name.startswith(("refused.", "lost."))}
    letters |= {"unreadable", "invalid", "future", "late", "too_large"}
    alert = next(rule["expr"] for rule in RULES if rule["alert"] == "HeadraceStageDeadLetters")
    panels = [
        text for text in expressions() if "headrace_bridge_dead_letters_total" in text and "headrace_stage" in text
    ]
    assert panels
    for text in (alert, *panels):
        (_, wanted) = {label: (how, value) for label, how, value in MATCHER.findall(text)}["name"]
        assert {name for name in names_of("headrace_stage", "") if re.fullmatch(wanted, name)} == letters


def promtool(folder: Path, *arguments: str) -> str:
    """Run promtool in a folder: that of the path, else that of the image. Skips, loudly, where neither is."""
    if shutil.which("promtool"):
        command = ["promtool"]
    else:
        pull = ["docker", "run", "--rm", "--network=none", "--entrypoint", "promtool"]
        command = [*pull, "-v", f"{folder}:/rules:ro", "-w", "/rules", IMAGE]
        tried = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"elsewhere: needs promtool or the image {IMAGE}: {tried.stderr.strip()[-200:]}")
    ran = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    return said


@pytest.mark.docker
def test_prometheus_takes_configuration_and_rules_and_the_alerts_fire_when_they_should() -> None:
    assert f"SUCCESS: {len(RULES)} rules found" in promtool(PROMETHEUS, "check", "config", "prometheus.yml")
    assert "SUCCESS" in promtool(PROMETHEUS, "test", "rules", "alerts_test.yml")
    tested = (PROMETHEUS / "alerts_test.yml").read_text("utf-8")
    assert [rule["alert"] for rule in RULES if f"alertname: {rule['alert']}" not in tested] == []


@pytest.mark.docker
def test_prometheus_reads_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    """As rules of a recording, with Grafana's variable filled in."""
    texts = [target["expr"].replace("$__rate_interval", "1m") for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(texts)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    tmp_path.chmod(0o755)
    assert f"SUCCESS: {len(texts)} rules found" in promtool(tmp_path, "check", "rules", "panels.yml")
