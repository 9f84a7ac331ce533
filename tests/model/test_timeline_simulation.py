"""Crashes at every step, other chunks and lost stores change no output and no state of the timeline stage.

Over the same log the promises of timeline.md 6 and 8 are checked on the replies, by an auditor that knows only what
consumers and owners were told.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import pytest

from headrace_core.partitioner import partition_of
from headrace_core.stage import Emission, Record, header
from headrace_core.state import MemoryState
from headrace_core.timeline.buffer import SourceRecord
from headrace_core.timeline.engine import CHANGES
from headrace_core.timeline.settings import Buffer, Settings
from headrace_core.timeline.stage import TimelineStage
from tests.support.simulator import Simulation

STEPS = int(os.environ.get("HEADRACE_SIM_STEPS", "100000"))
SEEDS = [int(os.environ["HEADRACE_SIM_SEED"])] if "HEADRACE_SIM_SEED" in os.environ else range(10)
PARTITION = 1
SETTINGS = Settings(
    events=True,
    bucket_count=8,
    partitions=2,
    max_lease_ms=400,
    max_body_bytes=8,
    dedup_window_ms=800,
    max_deliveries=4,
    parked_retention_ms=2_000,
    max_poll=20,
    max_wait_ms=300,
)
NAMES = [f"job-{n}" for n in range(60)] + ["é", "~"]
IDS = [name for name in NAMES if partition_of(name.encode(), 8) % 2 == PARTITION]
STRANGER = next(name for name in NAMES if partition_of(name.encode(), 8) % 2 != PARTITION)
OPS = {
    "create": 30, "poll": 22, "complete": 12, "extend": 8, "release": 6, "move": 3, "cancel": 2, "lease": 8,
    "give_back": 2, "purge": 2, "clock": 1, "get": 2, "count": 1, "due": 1, "leases_of": 1, "unwait": 1, "freeze": 0.05,
    "unfreeze": 1, "drop": 0.02, "nonsense": 0.2, "configure": 0.1, "subscribe": 0.3, "verify": 0.02,
}  # fmt: skip


def arguments(dice: random.Random, op: str) -> dict[str, Any]:
    """Arguments that mostly make sense."""
    consumer, group = dice.choice(["C1", "C1", "C2"]), dice.choice(["P1", "P1", "P1", "P2"])
    version = {"version": dice.randint(1, 6)} if dice.random() < 0.2 else {}
    match op:
        case "create":
            return {"group": group, "delay_ms": dice.choice([0, 0, 1, 50, 300, 10**12])}
        case "move":
            return {"group": group, "delay_ms": dice.choice([0, 20, 200]), **version}
        case "cancel":
            return {"group": group, **version}
        case "lease" | "extend":
            return {"consumer": consumer, "lease_ms": dice.choice([5, 6, 100, 400, 401]), **version}
        case "release":
            return {"consumer": consumer, "delay_ms": dice.choice([5, 6, 100]), **version}
        case "complete":
            return {"consumer": consumer, **version}
        case "give_back":
            return {"consumer": consumer, "version": dice.randint(1, 6)}
        case "poll":
            wait = {"wait_ms": dice.choice([1, 100, 300])} if dice.random() < 0.5 else {}
            buckets = {"buckets": dice.sample([1, 3, 5, 7], 2)} if dice.random() < 0.2 else {}
            return {
                "consumer": consumer,
                "lease_ms": dice.choice([50, 400, 400]),
                "limit": dice.randint(1, 4),
                **wait,
                **buckets,
            }
        case "clock":
            return {"offsets": dice.choice([[0], [1], [0, 10], [0], [1999], [5000]])}
        case "unwait":
            return {"waiter": dice.randint(1, 2000)}
        case "configure":
            return {"settings": {"max_deliveries": dice.choice([0, 3, 4])}}
    return {"consumer": consumer}


def log(seed: int, count: int) -> Iterator[Record]:
    """Commands, ticks and rubbish; the clock of the broker sometimes goes back; requests come again."""
    dice, at, again = random.Random(seed), 1_700_000_000_000, None
    for offset in range(count):
        at += dice.choice([-3, 0, 0, 0, 1, 2, 3, 5, 30])
        if dice.random() < 0.1:
            yield Record(PARTITION, offset, at, None, b"", (("kind", b"tick"),))
            continue
        op = dice.choices(list(OPS), list(OPS.values()))[0]
        if dice.random() < 0.05 and again is not None:
            headers = (*again.headers[:-1], ("tl-correlation-id", b"%d" % offset))
            yield again._replace(offset=offset, append_ms=at, headers=headers)
            continue
        keyed = op in ("create", "move", "cancel", "lease", "extend", "release", "complete", "give_back", "get")
        id_ = STRANGER if dice.random() < 0.005 else dice.choice(IDS)
        args = json.dumps(arguments(dice, op)).encode() if dice.random() < 0.998 else b"{"
        headers = [("tl-op", op.encode()), ("tl-args", args)]
        if dice.random() < 0.5:
            headers.append(("tl-request-id", f"r{offset // 40}-{dice.randint(1, 3)}".encode()))
        headers += [("tl-reply-to", b"api-1"), ("tl-reply-partition", b"0"), ("tl-correlation-id", b"%d" % offset)]
        value = dice.choice([b"", b"x", b"body", b"\xff\x00", b"123456789"])
        again = Record(PARTITION, offset, at, id_.encode() if keyed else None, value, tuple(headers))
        yield again


@dataclass
class Auditor:
    """What was promised to whom: active leases, versions of grants, first answers of requests (sections 6, 8)."""

    holders: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)
    first: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    checked: dict[str, int] = field(default_factory=dict)
    late_ms: list[int] = field(default_factory=list)

    def note(self, what: str) -> None:
        self.checked[what] = self.checked.get(what, 0) + 1

    def active(self, id_: str, now: int) -> bool:
        return id_ in self.holders and now < self.holders[id_][1]

    def grant(self, consumer: str, lease: dict[str, Any], now: int) -> None:
        """One lease at a time, never before the timestamp, with a version above that of every grant before."""
        id_ = lease["id"]
        assert not self.active(id_, now), f"{id_} is granted twice"
        assert lease["due_at"] <= now < lease["expires_at"]
        assert lease["version"] > self.highest.get(id_, 0)
        self.late_ms.append(now - lease["due_at"])
        self.highest[id_] = lease["version"]
        self.holders[id_] = (consumer, lease["expires_at"], lease["version"])
        self.note("grant")

    def served(self, served: Emission) -> None:
        """The answer of a waiting poll."""
        answer = json.loads(served.value or b"")
        for lease in answer["leases"]:
            self.waits_granted(lease, answer["now"])

    def waits_granted(self, lease: dict[str, Any], now: int) -> None:
        self.grant("?", lease, now)
        self.note("wait")

    def answer(self, op: str, args: dict[str, Any], id_: str, answer: dict[str, Any]) -> None:
        now = answer["now"]
        if answer.get("replayed"):
            self.note("replay")
            self.same_as_first(op, args, id_, answer)
            return
        if op in CHANGES and "request" in args and answer.get("code") not in ("REQUEST_ID_REUSED", "MISROUTED"):
            key = ("" if op == "poll" else id_, args["request"])
            before = self.first.get(key)
            assert before is None or now >= before["now"] + SETTINGS.dedup_window_ms, f"{key} had an effect twice"
            self.first[key] = answer
        if not answer["ok"]:
            self.note(answer["code"])
            return
        if op == "poll":
            for lease in answer["leases"]:
                self.grant(args["consumer"], lease, now)
        elif op == "lease":
            self.grant(args["consumer"], answer, now)
        elif op in ("extend", "release", "give_back") or (op == "complete" and not answer["noop"]):
            self.by_holder(op, args, id_, answer, now)
        elif op == "move" or (op == "cancel" and not answer["noop"]):
            assert not self.active(id_, now), f"{op} under an active lease"
            self.holders.pop(id_, None)
            self.note(op)
        elif op == "create":
            assert not self.active(id_, now)
            self.highest.pop(id_, None)
            self.holders.pop(id_, None)
        elif op == "drop":
            assert not any(self.active(held, now) for held in self.holders)
            self.holders.clear()
            self.highest.clear()
            self.first.clear()

    def same_as_first(self, op: str, args: dict[str, Any], id_: str, answer: dict[str, Any]) -> None:
        """A replay is the first answer again (8.2); bodies may be gone since, and a waiting poll answered."""
        first = self.first["" if op == "poll" else id_, args["request"]]
        free = ("now", "emitted", "served", "replayed", "leases")
        if not first.get("waiting"):
            assert {k: v for k, v in answer.items() if k not in free} == {
                k: v for k, v in first.items() if k not in free
            }

    def by_holder(self, op: str, args: dict[str, Any], id_: str, answer: dict[str, Any], now: int) -> None:
        """Only the holder, only before the expiry, only with a version of the present lease."""
        consumer, until, version = self.holders[id_]
        assert now < until
        assert consumer in (args["consumer"], "?")
        assert args.get("version", version) >= version
        if op == "extend":
            self.holders[id_] = (args["consumer"], answer["expires_at"], version)
        else:
            del self.holders[id_]
        self.note(op)


def audit(records: list[Record], outputs: list[Emission]) -> Auditor:
    """Each reply in order; those whose correlation is another record's answer a poll that had waited."""
    auditor = Auditor()
    for output in outputs:
        if output.topic != "replies":
            continue
        offset = int((header(output.headers, "id") or b"").split(b":")[2])
        if int(output.key or b"-1") != offset:
            auditor.served(output)
            continue
        record = records[offset]
        try:
            args = json.loads(header(record.headers, "tl-args") or b"{}")
        except ValueError:
            continue
        if request := header(record.headers, "tl-request-id"):
            args["request"] = request.decode()
        op, id_ = (header(record.headers, "tl-op") or b"").decode(), (record.key or b"").decode()
        auditor.answer(op, args, id_, json.loads(output.value or b""))
    return auditor


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_change_neither_outputs_nor_state(seed: int) -> None:
    print(f"replay with HEADRACE_SIM_SEED={seed}")
    records = list(log(seed, STEPS // len(SEEDS)))
    plain, outputs = MemoryState(), list[Emission]()
    stage = TimelineStage(SETTINGS)
    for record in records:
        stage.apply(plain, record, outputs.append)
    auditor = audit(records, outputs)
    seen = ("grant", "wait", "replay", "extend", "release", "complete", "move", "cancel")
    assert len(records) < 5_000 or all(auditor.checked.get(what, 0) > 5 for what in seen), auditor.checked
    crashed = Simulation(lambda: TimelineStage(SETTINGS), records, seed, late_writers=True).run()
    assert crashed.crashes > 10
    assert crashed.distinct() == [(e.topic, header(e.headers, "id"), e.value) for e in outputs]
    assert crashed.store.snapshot() == plain.snapshot()
    gauges = stage.gauges(plain)
    whole = ("changed", "noop", "replayed", "read", "system")
    assert gauges["in"] == len(records)
    assert gauges["in"] == sum(n for name, n in gauges.items() if name in whole or name.startswith("refused."))
    assert gauges["granted"] == auditor.checked["grant"]
    assert gauges["index_repairs"] == 0
    found = stage.histograms(plain)
    assert found["lateness_ms"].counts == by_bucket(auditor.late_ms, found["lateness_ms"].edges)
    assert found["lateness_ms"].total == sum(auditor.late_ms)
    assert sum(found["deliveries"].counts) == gauges["completed"] + gauges["parked_total"]
    assert found["deliveries"].total <= gauges["granted"]


def by_bucket(values: list[int], edges: tuple[int, ...]) -> tuple[int, ...]:
    """How many are in which bucket, each of which includes its upper edge."""
    below = [sum(value <= edge for value in values) for edge in edges] + [len(values)]
    return tuple(more - less for less, more in pairwise([0, *below]))


def buffer_log(seed: int, count: int) -> Iterator[Record]:
    """Records of two source partitions, some read again, some late; ticks; the owner cancels and moves."""
    dice, at, offsets, high = random.Random(seed), 1_700_000_000_000, {1: 0, 3: 0}, 0
    for offset in range(count):
        at += dice.choice([-3, 0, 0, 1, 2, 5])
        source = dice.choice([1, 3])
        if dice.random() < 0.25:
            yield Record(PARTITION, offset, at, None, b"", (("kind", b"tick"),))
            continue
        if dice.random() < 0.05:
            id_ = f"in-{source}-{dice.randint(max(0, offsets[source] - 5), offsets[source])}"
            args = json.dumps({"group": "buffer"}).encode()
            yield Record(PARTITION, offset, at, id_.encode(), b"", (("tl-op", b"cancel"), ("tl-args", args)))
            continue
        again = dice.random() < 0.2 and offsets[source] > 0
        number = dice.randint(max(0, offsets[source] - 20), offsets[source] - 1) if again else offsets[source]
        offsets[source] += 0 if again else 1
        high = max(high, at)
        args = json.dumps({"topic": "in", "partition": source, "offset": number, "record_timestamp": high}).encode()
        value = msgspec.msgpack.encode(SourceRecord(None, b"v%d" % number, [("h", b"1")]))
        yield Record(PARTITION, offset, at, None, value, (("tl-op", b"buffer_in"), ("tl-args", args)))


def in_time_and_order(records: list[Record], out: list[Emission]) -> None:
    """Nothing leaves before its time by the log's clock, and each source partition keeps its order."""
    due: dict[bytes, int] = {}
    now = list(accumulate((record.append_ms for record in records), max))
    for record in records:
        if header(record.headers, "tl-op") == b"buffer_in":
            args = json.loads(header(record.headers, "tl-args") or b"")
            due.setdefault(f"in-{args['partition']}-{args['offset']}".encode(), args["record_timestamp"] + 30)
    last = {b"1": -1, b"3": -1}
    for emission in out:
        source = header(emission.headers, "tl-source") or b""
        offset = int((header(emission.headers, "id") or b"").split(b":")[2])
        assert due[source] <= now[offset]
        _, partition, number = source.split(b"-")
        assert int(number) > last[partition]
        last[partition] = int(number)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_time_buffer_keeps_the_order_and_emits_once(seed: int) -> None:
    """Section 11: constant delay, so each source partition leaves in order; nothing leaves early or twice."""
    print(f"replay with HEADRACE_SIM_SEED={seed}")
    settings = Settings(bucket_count=4, partitions=2, buffer=Buffer(source="in", target="out", delay_ms=30))
    records = list(buffer_log(seed, STEPS // len(SEEDS) // 5))
    plain, outputs = MemoryState(), list[Emission]()
    stage = TimelineStage(settings)
    for record in records:
        stage.apply(plain, record, outputs.append)
    emitted = [header(e.headers, "tl-source") for e in outputs if e.topic == "out"]
    assert len(emitted) == len(set(emitted)) > 0
    in_time_and_order(records, [e for e in outputs if e.topic == "out"])
    crashed = Simulation(lambda: TimelineStage(settings), records, seed, late_writers=True).run()
    assert crashed.distinct() == [(e.topic, header(e.headers, "id"), e.value) for e in outputs]
    assert crashed.store.snapshot() == plain.snapshot()
    gauges = stage.gauges(plain)
    assert gauges["emitted"] == len(emitted)
