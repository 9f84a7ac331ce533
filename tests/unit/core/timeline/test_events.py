"""The events topic: one record for each applied change, from which the timeline can be told (timeline.md 18)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from headrace_core.stage import Emission, Record, header
from headrace_core.state import MemoryState
from headrace_core.timeline.events import NAMES
from headrace_core.timeline.message import Message
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.stage import DONE, TimelineStage
from headrace_schemas.headers import CHANGED
from tests.model.test_timeline_simulation import SETTINGS, log

T = 1_700_000_000_000


class Told:
    """A timeline whose events are on; `events` are those of the last record, as (event, key, value)."""

    def __init__(self, **settings: Any) -> None:
        self.stage = TimelineStage(Settings(bucket_count=8, partitions=1, **{"events": True, **settings}), "jobs")
        self.state, self.offset, self.now = MemoryState(), 0, T

    def do(self, op: str, key: bytes | None = None, **args: Any) -> list[tuple[str, bytes | None, dict[str, Any]]]:
        out: list[Emission] = []
        headers = (("tl-op", op.encode()), ("tl-args", json.dumps(args).encode()), ("tl-reply-to", b"api-1"))
        self.stage.apply(self.state, Record(0, self.offset, self.now, key, b"body", headers), out.append)
        self.offset += 1
        return [
            ((header(e.headers, "event") or b"").decode(), e.key, json.loads(e.value or b""))
            for e in out
            if e.topic == "timeline.jobs.events"
        ]

    def names(self, op: str, key: bytes | None = None, **args: Any) -> list[tuple[str, bytes | None]]:
        return [(name, id_) for name, id_, _ in self.do(op, key, **args)]


def test_a_life_is_told_from_its_creation_to_its_end() -> None:
    told = Told(max_deliveries=2, parked_retention_ms=1_000)
    about = {"id": "a", "group": "P", "timestamp": T + 10, "now": T}
    [first] = told.do("create", b"a", group="P", delay_ms=10)
    rest = {"version": 1, "deliveries": 0, "status": "waiting", "lock": None}
    assert first == ("created", b"a", about | rest)
    assert told.names("create", b"a", group="P", delay_ms=10) == []
    assert told.names("get", b"a") == []
    assert told.names("move", b"a", group="P", delay_ms=20) == [("moved", b"a")]
    told.now += 20
    [(name, _, value)] = told.do("lease", b"a", consumer="C", lease_ms=100)
    assert (name, value["status"], value["lock"], value["deliveries"]) == ("leased", "processing", "C", 1)
    assert told.names("extend", b"a", consumer="C", lease_ms=200) == [("extended", b"a")]
    assert told.names("release", b"a", consumer="C", delay_ms=50) == [("released", b"a")]
    told.now += 50
    assert told.names("poll", consumer="C", lease_ms=100, limit=5) == [("leased", b"a")]
    told.now += 100
    assert told.names("poll", consumer="C", lease_ms=100, limit=5) == [("parked", b"a")]
    told.now += 1_000
    [(name, _, value)] = told.do("purge")
    assert (name, value["id"], value["status"]) == ("purged", "a", "parked")
    assert told.names("create", b"b", group="P", delay_ms=0) == [("created", b"b")]
    [(name, _, value)] = told.do("cancel", b"b", group="P")
    assert (name, value["deleted_by"], value["version"]) == ("cancelled", "P", 2)
    assert told.names("cancel", b"b", group="P") == []
    told.now += 600_000
    assert told.names("purge") == [], "a tombstone is no message"


def test_a_waiter_is_granted_by_due_work_and_the_record_that_did_it_tells_its_own_change_after() -> None:
    told = Told()
    told.do("poll", consumer="C", lease_ms=100, limit=5, wait_ms=1_000)
    told.do("create", b"a", group="P", delay_ms=10)
    told.now += 10
    assert told.names("create", b"b", group="P", delay_ms=10) == [("leased", b"a"), ("created", b"b")]
    [(name, _, value)] = told.do("complete", b"a", consumer="C")
    assert (name, value["deleted_by"]) == ("completed", "C")


def test_what_happens_to_the_whole_is_told_without_an_id_and_can_turn_the_events_on_and_off() -> None:
    told = Told(events=False)
    assert told.names("create", b"a", group="P", delay_ms=10) == []
    [(name, key, value)] = told.do("configure", settings={"events": True})
    assert (name, key, value["settings"]["events"]) == ("configured", None, True)
    assert told.names("freeze") == [("frozen", None)]
    assert told.names("move", b"a", group="P", delay_ms=10) == []
    assert told.names("unfreeze") == [("unfrozen", None)]
    assert told.names("drop") == [("dropped", None)]
    assert told.names("configure", settings={"events": False}) == []


@pytest.mark.parametrize("wrong", [1, None, "yes"])
def test_the_setting_is_true_or_false(wrong: Any) -> None:
    told = Told()
    assert told.names("configure", settings={"events": wrong}) == []


def test_the_names_are_those_of_the_schema() -> None:
    assert set(NAMES) == set(CHANGED["event"]["enum"])


def outputs(settings: Settings, seed: int) -> tuple[list[Emission], MemoryState]:
    stage, state, out = TimelineStage(settings, "jobs"), MemoryState(), list[Emission]()
    for record in log(seed, 4_000):
        stage.apply(state, record, out.append)
    return out, state


def of(message: Message) -> tuple[int, int, str, str | None, int, bool]:
    return message.version, message.timestamp, message.group, message.lock, message.deliveries, message.parked


@pytest.mark.parametrize("seed", range(3))
def test_who_reads_the_events_knows_the_messages_and_what_was_counted(seed: int) -> None:
    on = msgspec.structs.replace(SETTINGS, events=True)
    out, state = outputs(on, seed)
    known, names = dict[bytes, dict[str, Any]](), Counter[str]()
    for emission in out:
        name = (header(emission.headers, "event") or b"").decode()
        if emission.topic != "timeline.jobs.events" or not name:
            continue
        names[name] += 1
        if emission.key is None:
            known = {} if name == "dropped" else known
            continue
        told = json.loads(emission.value or b"")
        before = known.pop(emission.key, None)
        assert (before is None) == (name == "created")
        assert before is None or told["version"] == before["version"] + (name != "purged")
        if "deleted_by" not in told and name != "purged":
            known[emission.key] = told
    live = {k[1:]: msgspec.msgpack.decode(v, type=Message) for k, v in state.scan(b"m", b"n")}
    assert {
        id_: (t["version"], t["timestamp"], t["group"], t["lock"], t["deliveries"], t["status"] == "parked")
        for id_, t in known.items()
    } == {id_: of(message) for id_, message in live.items() if not message.deleted}
    gauges = TimelineStage(on).gauges(state)
    wanted = {**{name: gauges[name] for name in DONE.values()}, "leased": gauges["granted"]}
    assert {name: names[name] for name in wanted} == wanted
    assert names["parked"] == gauges["parked_total"]
    assert gauges["expired"] > 0


@pytest.mark.parametrize("seed", range(2))
def test_the_events_change_no_other_output(seed: int) -> None:
    found = []
    for on in (True, False):
        out, _ = outputs(msgspec.structs.replace(SETTINGS, events=on), seed)
        others = [e for e in out if header(e.headers, "event") is None]
        found.append([(e.topic, e.key, (e.value or b"").replace(b'"events":true', b'"events":false')) for e in others])
    assert found[0] == found[1]
