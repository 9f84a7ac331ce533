"""A wrong setting is found at start and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from headrace_bridge.kafka import limits
from headrace_bridge.settings import BridgeSettings, filter_problem
from headrace_bridge.subscriptions import FilterMemory
from headrace_core.errors import ConfigError


@pytest.mark.parametrize("good", ["te/#", "#", "+/a", "/", "a b/+", "$share/g/te/#"])
def test_filters_that_may_be_subscribed(good: str) -> None:
    assert filter_problem(good) == ""


@pytest.mark.parametrize("bad", ["", "$SYS/#", "a#", "#/a", "a/b+", "a\0", "x" * 65_536, "$share/g", "$share//a"])
def test_filters_that_may_not(bad: str) -> None:
    assert filter_problem(bad) != ""


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BRIDGE_FILTERS", '{"te/#": 2, "x": 0}')
    assert BridgeSettings().subscriptions == {"te/#": 2, "x": 0}
    monkeypatch.setenv("HEADRACE_BRIDGE_FILTERS", '["a", "b"]')
    assert BridgeSettings().subscriptions == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FILTERS", "[]"), ("FILTERS", '{"a": 3}'), ("SESSION_EXPIRY_S", "3600"), ("MQTT_VERSION", "4"),
        ("MAX_IN_FLIGHT", "0"), ("ROOT_PATTERN", "te/#"), ("MQTT_PORT", "70000"),
        ("ROOT_PATTERN", "{root}/#/x"), ("ROOT_PATTERN", "a+/{root}"), ("ROUTES", '{"a#": "x"}'),
        ("ROUTES", '{"$share/g/a": "x"}'), ("ROUTES", '{"a/#": "no name"}'),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"HEADRACE_BRIDGE_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        BridgeSettings()


def test_what_is_no_json_is_a_wrong_setting() -> None:
    env = {**os.environ, "HEADRACE_BRIDGE_ROUTES": "{"}
    done = subprocess.run(
        [sys.executable, "-m", "headrace_bridge"], env=env, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert '"routes"' in json.loads(done.stderr.splitlines()[-1])["error"]


def test_an_option_that_kafka_clients_do_not_know_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match=r"^kafka_options: .*no\.such"):
        limits({"bootstrap.servers": "127.0.0.1:1", "no.such": "1"}, ["a"])


def test_filters_are_remembered_by_client_id(tmp_path: Path) -> None:
    memory = FilterMemory(tmp_path / "state", "a/b")
    assert memory.load() == set()
    memory.save({"x", "te/#"})
    assert FilterMemory(tmp_path / "state", "a/b").load() == {"x", "te/#"}
    assert FilterMemory(tmp_path / "state", "a").load() == set()


def test_a_memory_that_cannot_be_used_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{")
    with pytest.raises(ConfigError, match="state_dir"):
        FilterMemory(tmp_path / "file", "a").save({"x"})
    for text in ("{", "5"):
        (tmp_path / "a.filters.json").write_text(text)
        with pytest.raises(ConfigError, match="state_dir"):
            FilterMemory(tmp_path, "a").load()
