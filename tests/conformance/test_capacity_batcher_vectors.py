"""The vectors of vectors/capacity.json that the batcher's side answers: kinds batcher, pause and agent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace_core.capacity.agent import LeaseAgent, others_may_hold_from_ms
from headrace_core.capacity.config import BatcherConfig, LeaseConfig
from headrace_core.capacity.pause import PauseRule
from headrace_core.capacity.protocol import Grant
from headrace_core.capacity.resources import SharedResource
from tests.support.capacity_driver import Driver, TraceStore, check, reply_of

FOLDER = Path(os.environ.get("HEADRACE_VECTORS", Path(__file__).parents[1] / "vectors"))
VECTORS: list[dict[str, Any]] = json.loads((FOLDER / "capacity.json").read_text())["vectors"]


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(vector, id=vector["id"]) for vector in VECTORS if vector["kind"] == kind]


def by_mode() -> list[Any]:
    """Each vector in each pacing mode that it names is its own test."""
    cases = []
    for vector in VECTORS:
        if vector["kind"] != "batcher":
            continue
        expect = vector["expect"]
        for pacing in ("strict", "slice"):
            wanted = {**expect.get("any", {}), **expect.get(pacing, {})}
            if "any" in expect or pacing in expect:
                cases.append(pytest.param(vector, pacing, wanted, id=f"{vector['id']}-{pacing}"))
    return cases


@pytest.mark.parametrize(("vector", "pacing", "wanted"), by_mode())
def test_the_batcher_behaves_as_the_vector_says(vector: dict[str, Any], pacing: str, wanted: dict[str, Any]) -> None:
    driver = Driver(vector["config"], pacing)
    driver.run(vector["steps"])
    check(driver, wanted)


@pytest.mark.parametrize("vector", of_kind("pause"))
def test_a_pause_is_as_long_as_the_vector_says(vector: dict[str, Any]) -> None:
    rule = PauseRule(BatcherConfig(**vector["config"].get("pause", {})))
    pauses = []
    for step in vector["steps"]:
        if rule.until_ms is not None and rule.until_ms < step["t"]:
            rule.resume(step["t"])
        outcome = rule.ask(step["t"], step.get("retry_after_ms"))
        pauses.append([outcome, rule.until_ms])
    assert pauses == vector["expect"]["pauses"]


@pytest.mark.parametrize("vector", of_kind("agent"))
def test_the_lease_client_believes_what_the_vector_says(vector: dict[str, Any]) -> None:
    settings = vector["config"]["lease"]
    lease = LeaseConfig(**settings, renew_interval_ms=settings["ttl_ms"] // 3)
    for step, wanted in zip(vector["steps"], vector["expect"]["outcomes"], strict=True):
        resource = SharedResource(TraceStore(), lease=lease, shared_capacity=1)
        resource.start()
        resource.request(1)
        agent = LeaseAgent(resource, "agent")
        ask = agent.begin(step["sent"])
        usable = agent.receive(ask.seq, reply_of(resource, [Grant(0, 7, 1)], lease.ttl_ms), step["reply"])
        released = agent.begin(step["reply"] + lease.renew_interval_ms).released
        held = resource.held()
        got = {
            "usable": usable,
            "last_dispatch_before": held[0][3] if held else None,
            "releases": (0, 7) in released,
            "others_may_hold_from": others_may_hold_from_ms(step["granted"], lease),
        }
        assert {key: got[key] for key in wanted} == wanted
