"""Nothing moves any more: each part that still does is named, and patience has an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import evidence, settling
from headrace.endpoints import Endpoints
from headrace.evidence import Written

AT = Endpoints(
    kafka="k:1", prefix="p.", mqtt_host="h", mqtt_port=1, mqtt_protocol="5", bridge_url="bridge", streams_url="streams",
    api_url="api", spark_url="spark", database=Path("db"), logs=Path("logs"), capacity_per_s=200, cost="per_row(1)",
    timeout_ms=2000, lease_store="tcp://127.0.0.1:1", lease_token_file=Path("token"), resource="datastore",
)  # fmt: skip


class Stack:
    """What the parts say; everything is at rest until a test changes it."""

    def __init__(self) -> None:
        self.topics = {("raw", 0): 10, ("routed", 0): 9, ("batches", 0): 4, ("outbound", 0): 2}
        self.taken = {"registration": 10, "batching": 9}
        self.bridge = {"headrace_bridge_in_flight": 0, "headrace_bridge_kafka_queue": 0}
        self.open_batches = 0
        self.outbound_done = 2
        self.written = {"writer": 4, "archive": 4}
        self.messages = 8
        self.looks = 0

    def ends(self) -> dict[tuple[str, int], int]:
        self.looks += 1
        return dict(self.topics)

    def published(self) -> dict[tuple[str, int], int]:
        return {("outbound", 0): self.outbound_done}

    def close(self) -> None:
        pass

    def samples(self, url: str) -> Iterator[tuple[str, dict[str, str], float]]:
        if url == "bridge":
            yield from ((name, {}, float(value)) for name, value in self.bridge.items())
        for stage, offset in self.taken.items() if url == "streams" else ():
            yield "headrace_stage_offset", {"stage": stage, "partition": "0"}, float(offset)

    def gauges(self, _: str) -> dict[str, dict[str, int]]:
        return {"registration": {"in": self.messages}, "batching": {"open_batches": self.open_batches}}


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Stack:
    stack = Stack()
    monkeypatch.setattr(evidence, "samples", stack.samples)
    monkeypatch.setattr(evidence, "gauges", stack.gauges)
    monkeypatch.setattr(evidence, "stored", lambda _, job: Written({"records": stack.written[job.name]}))
    monkeypatch.setattr(settling, "Offsets", lambda _: stack)
    monkeypatch.setattr(settling, "LOOK_S", 0.01)
    return stack


def test_a_stack_at_rest_is_looked_at_twice(stack: Stack):
    assert settling.settle(AT, 5) == []
    assert stack.looks == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bridge": {"headrace_bridge_in_flight": 3}}, "bridge: 3 messages in flight"),
        ({"bridge": {"headrace_bridge_kafka_queue": 1}}, "bridge: 1 records queued"),
        ({"taken": {"registration": 7, "batching": 9}}, "registration: 3 records behind"),
        ({"taken": {"registration": 10}}, "batching: 9 records behind"),
        ({"open_batches": 2}, "batching: 2 batches are open"),
        ({"outbound_done": 0}, "bridge: 2 outbound messages are not published"),
        ({"written": {"writer": 1, "archive": 4}}, "writer: 3 batches are not written"),
        ({"written": {"writer": 4, "archive": 2}}, "archive: 2 batches are not written"),
        ({"messages": 5}, "MQTT: 3 published messages have not reached registration"),
    ],
)
def test_what_still_moves_is_named(stack: Stack, change: dict[str, Any], words: str):
    for name, value in change.items():
        setattr(stack, name, value)
    assert settling.settle(replace(AT, archive_url="archive"), 0.05, at_least=8) == [words]


def test_a_job_that_does_not_run_is_not_waited_for(stack: Stack):
    stack.written = {"writer": 4}
    assert settling.settle(AT, 0.05) == []


def test_patience_begins_anew_with_every_change(stack: Stack):
    """A slow writer that goes on is waited for longer than the patience."""
    stack.written["writer"] = 0
    stack.topics["batches", 0] = 40

    def turn() -> None:
        stack.written["writer"] = min(40, stack.looks)

    assert settling.settle(AT, 0.2, turn=turn) == []
    assert stack.looks >= 40


def test_a_stack_that_never_comes_to_rest_is_given_up(stack: Stack):
    def turn() -> None:
        stack.messages += 1

    assert settling.settle(AT, 0.05, turn=turn) == ["messages still come in"]


def test_what_turn_raises_ends_the_wait(stack: Stack):
    class Died(Exception):
        pass

    def turn() -> None:
        raise Died

    stack.open_batches = 1
    with pytest.raises(Died):
        settling.settle(AT, 5, turn=turn)
