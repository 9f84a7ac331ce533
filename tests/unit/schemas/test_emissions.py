"""Every record that a stage puts out is as the schemas of its topic say, its changelog included.

Key, headers and value are judged. The logs are those of the crash simulations and of the vectors, rubbish included.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.changelog import MARKER_KEY, SOURCE_HEADER, Marker
from headrace_core.registration import queries
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.routes import ABSENT, Request, route
from headrace_core.registration.stage import RegistrationStage
from headrace_core.registration.store import Store
from headrace_core.stage import Emission, Record, Stage
from headrace_core.state import MemoryState, Overlay
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.stage import TimelineStage
from headrace_schemas import validator, validator_of
from headrace_schemas.records import message_of, violations
from headrace_schemas.topics import topic
from tests.model import test_batching_simulation, test_registration_simulation, test_timeline_simulation

VECTORS = Path(os.environ.get("HEADRACE_VECTORS", "tests/vectors"))
SUITE = json.loads((VECTORS / "registration.json").read_text("utf-8"))
RECORDS = 1_500


def wrong(emissions: Iterable[Emission]) -> Counter[str]:
    """What is wrong with all of them, and how often."""
    return Counter(problem for e in emissions for problem in violations(e.topic, e.key, e.value, e.headers))


def kinds(emissions: Iterable[Emission]) -> set[str]:
    """Which messages of which topics there are."""
    found = ((e.topic, message_of(e.topic, e.key, e.value, e.headers)) for e in emissions)
    return {f"{topic}.{message.name}" for topic, message in found if message}


def run(stage: Stage, records: Iterable[Record], state: MemoryState) -> tuple[list[Emission], list[Emission]]:
    """Emissions of a log, and its changelog as records: one chunk for each record."""
    outputs: list[Emission] = []
    changes: list[Emission] = []
    for record in records:
        overlay = Overlay(state)
        stage.apply(overlay, record, outputs.append)
        headers = ((SOURCE_HEADER, record.offset.to_bytes(8, "big", signed=True)),)
        topic = f"{stage.name}.changelog"
        changes += [Emission(topic, k, v, headers) for k, v in overlay.mutations.items() if k[0] in stage.primary]
        marker = msgspec.json.encode(Marker(record.offset, record.append_ms, 1))
        changes.append(Emission(topic, MARKER_KEY, marker, headers))
        for key, value in overlay.mutations.items():
            if value is None:
                state.delete(key)
            else:
                state.put(key, value)
    return outputs, changes


@pytest.mark.parametrize("seed", range(3))
def test_what_registration_puts_out_from_a_log_with_rubbish(seed: int) -> None:
    stage = RegistrationStage(test_registration_simulation.CONFIG)
    outputs, changes = run(stage, test_registration_simulation.log(seed, RECORDS), MemoryState())
    assert wrong(outputs) == Counter()
    assert wrong(changes) == Counter()
    assert kinds(outputs) >= {
        "routed.register", "routed.twin", "routed.data", "routed.remove", "routed.tick", "routed.flush",
        "entities.entity", "entities.gone", "registrations.status", "registrations.gone", "outbound.publish",
        "outbound.clear", "replies.reply", "dead-letter.dead-letter",
    }  # fmt: skip
    assert kinds(changes) == {f"registration.changelog.{name}" for name in ("item", "gone", "marker")}


@pytest.mark.parametrize("seed", range(3))
def test_what_batching_puts_out_from_a_log_with_rubbish(seed: int) -> None:
    stage = BatchingStage(test_batching_simulation.CONFIG)
    outputs, changes = run(stage, test_batching_simulation.log(seed, RECORDS), MemoryState())
    assert wrong(outputs) == Counter()
    assert wrong(changes) == Counter()
    assert kinds(outputs) == {"batches.batch", "dead-letter.dead-letter"}
    assert kinds(changes) == {f"batching.changelog.{name}" for name in ("item", "gone", "marker")}


def test_what_batching_makes_of_what_registration_routed() -> None:
    routed, _ = run(
        RegistrationStage(test_registration_simulation.CONFIG),
        test_registration_simulation.log(7, RECORDS),
        MemoryState(),
    )
    records = [
        Record(e.partition or 0, offset, 0, e.key, e.value, e.headers)
        for offset, e in enumerate(e for e in routed if e.topic == "routed")
    ]
    outputs, _ = run(BatchingStage(BatchingConfig(window=50, timeout=200)), records, MemoryState())
    assert wrong(outputs) == Counter()
    assert kinds(outputs) == {"batches.batch", "dead-letter.dead-letter"}


@pytest.mark.parametrize("seed", range(3))
def test_what_a_timeline_puts_out_from_a_log_with_rubbish(seed: int) -> None:
    stage = TimelineStage(test_timeline_simulation.SETTINGS, "jobs")
    outputs, _ = run(stage, test_timeline_simulation.log(seed, RECORDS), MemoryState())
    named = [e._replace(topic=e.topic.replace("timeline.jobs.", "timeline.<name>.")) for e in outputs]
    assert wrong(named) == Counter()
    assert kinds(named) >= {
        "replies.timeline-reply", "timeline.<name>.parked.parked", "timeline.<name>.events.changed"
    }  # fmt: skip
    replies = [json.loads(e.value or b"") for e in named if e.topic == "replies"]
    assert {reply["ok"] for reply in replies} == {True, False}


BODIES = {("POST", "entities"): "http-create", ("PATCH", "entity"): "http-patch"}
ANSWERS = {
    ("POST", "entities"): "http-created", ("GET", "entities"): "http-entities", ("GET", "entity"): "entity",
    ("PATCH", "entity"): "entity", ("DELETE", "entity"): "http-entities",
    ("GET", "registrations"): "http-registrations", ("GET", "registration"): "http-registration",
}  # fmt: skip


class Vector:
    """One vector of registration.md through the stage, as records of `raw`; reads are answered from its state."""

    def __init__(self, vector: dict[str, Any]) -> None:
        self.config = RegistrationConfig(**(SUITE["format"]["defaults"] | vector.get("config", {})))
        self.vector = vector
        self.state = MemoryState()
        self.answers: dict[int, Any] = {}
        self.raw: list[Record] = []
        self.outputs: list[Emission] = []
        self.bodies: list[tuple[str, Any]] = []
        stage = RegistrationStage(self.config)
        for at, step in enumerate(vector["steps"]):
            for record in self.records(at, step):
                self.raw.append(record)
                outputs, _ = run(stage, [record], self.state)
                self.outputs += outputs
                self.replied(at, outputs)
            self.look()

    def records(self, at: int, step: dict[str, Any]) -> Iterator[Record]:
        now = step.get("receipt_time", Store(self.state).clock)
        if step["do"] == "tick":
            yield Record(0, at, now, None, b"", (("kind", b"tick"),))
        elif step["do"] == "message":
            payload = step["text"] if "text" in step else json.dumps(step["json"], ensure_ascii=False)
            topic = step["topic"]
            headers = (
                ("topic", topic.encode()), ("qos", b"1"), ("retain", b"1" if step["retained"] else b"0"),
                ("dup", b"0"), ("received", b"%d" % now),
            )  # fmt: skip
            yield Record(0, at, now, topic.split("/")[0].encode(), payload.encode(), headers)
        elif step["do"] == "http" and step["method"] == "GET":
            self.read(at, step)
        elif step["do"] == "http":
            request = {name: step[name] for name in ("method", "path", "body") if name in step}
            request |= {"headers": self.conditions(step), "correlation": f"c{at}"}
            yield Record(0, at, now, None, json.dumps(request).encode(), (("kind", b"request"),))

    def conditions(self, step: dict[str, Any]) -> dict[str, str]:
        names = [name for name in ("if_match", "if_none_match") if f"{name}_of" in step]
        return {name.replace("_", "-"): self.answers[step[f"{name}_of"]]["ETag"] for name in names}

    def replied(self, at: int, outputs: list[Emission]) -> None:
        for output in outputs:
            if output.topic == "replies":
                reply = json.loads(output.value or b"")
                self.answers[at] = reply["headers"]
                self.answered(self.vector["steps"][at], reply["status"], reply["body"])

    def read(self, at: int, step: dict[str, Any]) -> None:
        answer = queries.answer(self.state, self.config, Request("GET", step["path"], self.conditions(step)))
        self.answers[at] = answer.headers
        self.answered(step, answer.status, answer.body)

    def answered(self, step: dict[str, Any], status: int, body: Any) -> None:
        """Bodies of a request that was accepted, and of every answer, with the names of their schemas."""
        if status >= 400:
            self.bodies.append(("problem", body))
            return
        call = (step["method"], route(self.config, Request(step["method"], step["path"])).resource)
        if call in BODIES:
            self.bodies.append((BODIES[call], step["body"]))
        if status in (200, 201) and call in ANSWERS:
            self.bodies.append((ANSWERS[call], body))

    def look(self) -> None:
        """What the lists of the API answer now."""
        for root in self.config.roots:
            for path in ("entities", "registrations"):
                answer = queries.answer(self.state, self.config, Request("GET", f"/{root}/v1/{path}"))
                assert answer.body is not ABSENT
                self.bodies.append((f"http-{path}", answer.body))


@pytest.mark.parametrize("vector", SUITE["vectors"], ids=lambda vector: vector["id"])
def test_every_vector_of_registration(vector: dict[str, Any]) -> None:
    """What goes in, what comes out, and what the API answers after each step."""
    ran = Vector(vector)
    assert wrong(Emission("raw", r.key, r.value, r.headers) for r in ran.raw) == Counter()
    assert wrong(ran.outputs) == Counter()
    for name, body in ran.bodies:
        assert [f"{name}: {e.message}" for e in validator(name).iter_errors(body)] == []


NOT_THERE = {"raw.flush", "routed.flush", "replies.timeline-reply"}
"""Flushes are written for batching, replies of timelines by timelines."""


def test_the_vectors_have_every_message_of_registration_and_every_document_of_the_api() -> None:
    found: set[str] = set()
    documents: set[str] = set()
    for vector in SUITE["vectors"]:
        ran = Vector(vector)
        documents |= {name for name, _ in ran.bodies}
        found |= kinds(ran.outputs) | kinds(Emission("raw", r.key, r.value, r.headers) for r in ran.raw)
    topics = ("raw", "routed", "entities", "registrations", "outbound", "replies", "dead-letter")
    assert found >= {f"{t}.{m.name}" for t in topics for m in topic(t).messages} - NOT_THERE
    assert documents >= {"problem", *BODIES.values(), *ANSWERS.values()}


def test_the_replies_of_a_timeline_also_those_that_are_sent_again() -> None:
    stage, state, found = TimelineStage(Settings(partitions=1), "jobs"), MemoryState(), list[Emission]()
    headers = (
        ("tl-op", b"create"), ("tl-args", b'{"group": "P", "delay_ms": 5}'), ("tl-reply-to", b"api-1"),
        ("tl-correlation-id", b"c"), ("tl-request-id", b"r"),
    )  # fmt: skip
    record = Record(0, 0, 1_000, b"a", b"x", headers)
    stage.apply(state, record, found.append)
    again = stage.again(state, record)
    assert again is not None
    assert kinds([*found, again]) == {"replies.timeline-reply"}
    assert wrong([*found, again]) == Counter()


def test_the_totals_of_the_roots() -> None:
    state, config = MemoryState(), test_registration_simulation.CONFIG
    run(RegistrationStage(config), test_registration_simulation.log(1, RECORDS), state)
    roots = queries.answer(state, config, Request("GET", "/v1/status")).body["roots"]
    totals = validator_of({"$ref": "urn:headrace:schema:http-status:1#/$defs/totals"})
    assert set(roots) == set(config.roots)
    for shown in roots.values():
        assert [e.message for e in totals.iter_errors(shown)] == []
    assert any(shown["dropped"] for shown in roots.values())


def test_each_status_in_the_log_says_at_one_level_what_its_document_says() -> None:
    stage = RegistrationStage(test_registration_simulation.CONFIG)
    outputs, _ = run(stage, test_registration_simulation.log(2, RECORDS), MemoryState())
    seen = Counter[str]()
    for output in outputs:
        if output.topic == "registrations" and output.value:
            status = json.loads(output.value)
            document = status["document"]
            assert status["entity"] == f"{document['root']}/{document['@topic-id']}" == (output.key or b"").decode()
            assert status["waiting_for"] == document.get("waiting_for")
            assert status["reason"] == document.get("last_error", {}).get("reason")
            seen[status["status"]] += 1
    assert set(seen) == {"refused", "pending", "registered", "expired", "removed"}
