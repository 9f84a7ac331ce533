"""The timeline engine beside a slow, obvious model written from timeline.md.

The model has one dict of messages and looks through all of it each time; it knows no index, no counter, no bucket head.
Every answer, every served poll, everything emitted or parked and the whole visible state must be the same after each
record. Times stand at the boundaries: exactly at an instant, one before, one after; equal times; a clock that goes
back; the ends of int64. Restarts from the primary keys and dropped hints happen at any point.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace_core.partitioner import murmur2
from headrace_core.state import MemoryState
from headrace_core.timeline import keys
from headrace_core.timeline.buffer import Emitted
from headrace_core.timeline.engine import Engine
from headrace_core.timeline.polls import Parked
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.store import derive

TOP = 2**63 - 1
SETTINGS = Settings(
    bucket_count=4,
    partitions=1,
    min_lead_ms=5,
    max_lease_ms=100,
    max_future_ms=100_000_000,
    max_body_bytes=4,
    dedup_window_ms=50,
    max_deliveries=2,
    parked_retention_ms=60,
    max_poll=5,
    max_wait_ms=40,
)


@dataclass
class Msg:
    group: str
    timestamp: int
    created_at: int
    body: bytes
    version: int = 1
    lock: str | None = None
    lease_version: int = 0
    due_at: int = 0
    deliveries: int = 0
    parked: tuple[int, int] | None = None
    deleted_at: int | None = None
    completed_by: str | None = None
    source: tuple[int, int] | None = None


@dataclass
class Wait:
    number: int
    consumer: str
    lease_ms: int
    limit: int
    buckets: list[int] | None
    end: int
    request: str | None


class No(Exception):
    def __init__(self, code: str, **details: Any) -> None:
        super().__init__(code)
        self.answer = {"ok": False, "code": code, **details}


def integer(value: Any, low: int = 0, high: int = TOP) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or value > high:
        raise No("BAD_REQUEST")
    return value


def word(value: Any) -> str:
    if not isinstance(value, str) or value == "" or "\0" in value:
        raise No("BAD_REQUEST")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise No("BAD_REQUEST") from None
    return value


def name(value: Any) -> str:
    if len(word(value).encode()) > 255:
        raise No("BAD_REQUEST")
    return str(value)


@dataclass
class Model:
    """The spec, word by word. `left` collects what leaves beside the answers."""

    s: Settings
    now: int = 0
    degraded: bool = False
    frozen: bool = False
    buffers: bool = False
    numbers: int = 0
    messages: dict[str, Msg] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)
    memory: dict[tuple[str, str], tuple[int, Any, dict[str, Any]]] = field(default_factory=dict)
    left: list[tuple[str, str]] = field(default_factory=list)

    # one record (3.3)

    def record(self, at: int, op: str, args: dict[str, Any]) -> dict[str, Any]:
        self.now = max(self.now, at)
        self.left = []
        emitted, served = self.emit(), self.serve()
        try:
            answer = self.remembered(op, args) if op in CHANGES else getattr(self, op)(args)
        except No as no:
            answer = no.answer
        return {**answer, "now": self.now, "emitted": emitted, "served": served}

    def emit(self) -> list[str]:
        if self.frozen:
            return []
        due = [(m.timestamp, *m.source, i) for i, m in self.live() if m.source and m.timestamp <= self.now]
        ids = [entry[3] for entry in sorted(due)[:1000]]
        for id_ in ids:
            self.messages[id_] = replace(self.messages[id_], deleted_at=self.now, body=b"", completed_by=None)
            self.left.append(("emitted", id_))
        return ids

    def serve(self) -> list[dict[str, Any]]:
        served = []
        for wait in list(self.waits):
            if wait.end <= self.now:
                answer = {"ok": True, "ids": [], "has_more": False, "waiting": False}
            elif self.degraded or self.frozen:
                continue
            else:
                answer = self.grants(wait.consumer, self.now + wait.lease_ms, wait.limit, wait.buckets)
                if not answer["ids"]:
                    continue
            served.append(self.answered(wait, answer))
        return served

    def answered(self, wait: Wait, answer: dict[str, Any]) -> dict[str, Any]:
        self.waits.remove(wait)
        if wait.request is not None and ("", wait.request) in self.memory:
            at, print_, _ = self.memory["", wait.request]
            self.memory["", wait.request] = (at, print_, answer)
        return {"consumer": wait.consumer, "ids": answer["ids"], "has_more": answer["has_more"]}

    # requests (8)

    def remembered(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        request = args.get("request_id")
        if request is None:
            return self.change(op, args)
        key = ("" if op == "poll" else name(args.get("id")), word(request))
        print_ = (op, sorted((k, repr(v)) for k, v in args.items() if v is not None))
        if key in self.memory:
            at, first, answer = self.memory[key]
            waiting = op == "poll" and any(w.request == request for w in self.waits)
            if self.now < at + self.s.dedup_window_ms or waiting:
                if first != print_:
                    raise No("REQUEST_ID_REUSED")
                return answer | {"replayed": True}
        try:
            answer = self.change(op, args)
        except No as no:
            answer = no.answer
        self.memory[key] = (self.now, print_, answer)
        return answer

    def change(self, op: str, args: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = getattr(self, op)(args)
        return result

    # shared checks (4, 5)

    def live(self) -> list[tuple[str, Msg]]:
        return [(i, m) for i, m in self.messages.items() if m.deleted_at is None]

    def status(self, m: Msg) -> str:
        if m.parked is not None:
            return "parked"
        if m.timestamp <= self.now:
            return "available"
        return "waiting" if m.lock is None else "processing"

    def known(self, id_: str) -> Msg:
        m = self.messages.get(id_)
        if m is None or m.deleted_at is not None:
            raise No("NOT_FOUND")
        return m

    def time(self, args: dict[str, Any], absolute: str, relative: str) -> int:
        pair = (args.get(absolute), args.get(relative))
        if (pair[0] is None) == (pair[1] is None):
            raise No("BAD_REQUEST")
        return integer(pair[0]) if pair[0] is not None else self.now + integer(pair[1])

    def version(self, args: dict[str, Any]) -> int | None:
        return None if args.get("version") is None else integer(args["version"], 1)

    def thawed(self) -> None:
        if self.frozen:
            raise No("FROZEN")

    def far(self, time: int) -> None:
        if time > TOP or (self.s.max_future_ms and time > self.now + self.s.max_future_ms):
            raise No("TIMESTAMP_TOO_FAR")

    def lease_length(self, time: int) -> None:
        self.soon(time)
        if time > self.now + self.s.max_lease_ms or time > TOP:
            raise No("LEASE_TOO_LONG")

    def soon(self, time: int) -> None:
        if time <= self.now + self.s.min_lead_ms:
            raise No("TIMESTAMP_TOO_SOON")

    # owner

    def create(self, args: dict[str, Any]) -> dict[str, Any]:
        id_, group, time = name(args.get("id")), word(args.get("group")), self.time(args, "timestamp", "delay_ms")
        body = (args.get("body") or "").encode()
        self.thawed()
        if len(body) > self.s.max_body_bytes:
            raise No("BODY_TOO_LARGE")
        self.far(time)
        old = self.messages.get(id_)
        if old is not None and (old.deleted_at is None or old.deleted_at + self.s.dedup_window_ms > self.now):
            raise No("ALREADY_EXISTS", deleted=old.deleted_at is not None, same_owner=old.group == group)
        m = self.messages[id_] = Msg(group, time, self.now, body)
        return {"ok": True, "id": id_, "version": 1, "timestamp": time, "status": self.status(m)}

    def owned(self, id_: str, group: str, version: int | None) -> Msg:
        m = self.known(id_)
        if m.group != group:
            raise No("NOT_OWNER")
        if self.status(m) == "processing":
            raise No("LEASE_ACTIVE")
        if version is not None and version != m.version:
            raise No("VERSION_MISMATCH", version=m.version)
        return m

    def move(self, args: dict[str, Any]) -> dict[str, Any]:
        id_, group, time = name(args.get("id")), word(args.get("group")), self.time(args, "timestamp", "delay_ms")
        version = self.version(args)
        self.thawed()
        m = self.owned(id_, group, version)
        self.far(time)
        m.timestamp, m.lock, m.lease_version, m.due_at, m.version = time, None, 0, 0, m.version + 1
        if m.parked is not None:
            m.parked, m.deliveries = None, 0
        return {"ok": True, "version": m.version, "timestamp": time, "status": self.status(m)}

    def cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        id_, group, version = name(args.get("id")), word(args.get("group")), self.version(args)
        self.thawed()
        tomb = self.messages.get(id_)
        if tomb is not None and tomb.deleted_at is not None and tomb.group == group:
            return {"ok": True, "noop": True}
        m = self.owned(id_, group, version)
        m.deleted_at, m.body, m.completed_by = self.now, b"", None
        return {"ok": True, "noop": False}

    # consumers

    def lease(self, args: dict[str, Any]) -> dict[str, Any]:
        id_, consumer, time = (
            name(args.get("id")),
            word(args.get("consumer")),
            self.time(args, "expires_at", "lease_ms"),
        )
        version = self.version(args)
        if self.buffers:
            raise No("NOT_ALLOWED")
        self.thawed()
        if self.degraded:
            raise No("DEGRADED")
        m = self.known(id_)
        if version is not None and version != m.version:
            raise No("VERSION_MISMATCH", version=m.version)
        if self.status(m) != "available":
            raise No("NOT_AVAILABLE", status=self.status(m), timestamp=m.timestamp)
        if m.deliveries >= self.s.max_deliveries > 0:
            raise No("DELIVERIES_EXHAUSTED")
        self.lease_length(time)
        self.grant(m, consumer, time)
        return {"ok": True, "id": id_, "version": m.version, "expires_at": time, "deliveries": m.deliveries}

    def grant(self, m: Msg, consumer: str, time: int) -> None:
        m.lock, m.due_at, m.timestamp, m.version, m.deliveries = (
            consumer,
            m.timestamp,
            time,
            m.version + 1,
            m.deliveries + 1,
        )
        m.lease_version = m.version

    def available(self, buckets: list[int] | None) -> list[str]:
        found = [
            (m.timestamp, i.encode(), i)
            for i, m in self.live()
            if self.status(m) == "available" and (buckets is None or self.bucket(i, m) in buckets)
        ]
        return [i for _, _, i in sorted(found)]

    def bucket(self, id_: str, m: Msg) -> int:
        if m.source:
            return m.source[0] % self.s.bucket_count
        return (murmur2(id_.encode()) & 0x7FFFFFFF) % self.s.bucket_count

    def grants(self, consumer: str, time: int, limit: int, buckets: list[int] | None) -> dict[str, Any]:
        ids: list[str] = []
        more = False
        for id_ in self.available(buckets):
            m = self.messages[id_]
            if len(ids) == limit:
                more = True
                break
            if m.deliveries >= self.s.max_deliveries > 0:
                self.numbers += 1
                m.lock, m.lease_version, m.due_at, m.version = None, 0, 0, m.version + 1
                m.parked = (self.now, self.numbers)
                self.left.append(("parked", id_))
            else:
                self.grant(m, consumer, time)
                ids.append(id_)
        return {"ok": True, "ids": ids, "has_more": more, "waiting": False}

    def poll(self, args: dict[str, Any]) -> dict[str, Any]:
        consumer, limit = word(args.get("consumer")), integer(args.get("limit"), 1, self.s.max_poll)
        time, wait_ms, buckets = self.time(args, "expires_at", "lease_ms"), args.get("wait_ms"), args.get("buckets")
        if wait_ms is not None:
            integer(wait_ms, 0, self.s.max_wait_ms)
            if args.get("lease_ms") is None:
                raise No("BAD_REQUEST")
        if buckets is not None and (not buckets or any(b not in range(self.s.bucket_count) for b in buckets)):
            raise No("BAD_REQUEST")
        if self.buffers:
            raise No("NOT_ALLOWED")
        self.thawed()
        if self.degraded:
            raise No("DEGRADED")
        self.lease_length(time)
        answer = self.grants(consumer, time, limit, buckets)
        if not answer["ids"] and wait_ms:
            self.numbers += 1
            end = min(self.now + wait_ms, TOP)
            request = args.get("request_id")
            self.waits.append(Wait(self.numbers, consumer, args["lease_ms"], limit, buckets, end, request))
            answer["waiting"] = True
        return answer

    def held(self, id_: str, consumer: str) -> Msg:
        m = self.known(id_)
        if m.lock != consumer:
            raise No("NOT_LEASE_HOLDER")
        if m.timestamp <= self.now:
            raise No("LEASE_EXPIRED")
        return m

    def present(self, m: Msg, version: int | None) -> None:
        if version is not None and not m.lease_version <= version <= m.version:
            raise No("VERSION_MISMATCH", version=m.version)

    def extend(self, args: dict[str, Any]) -> dict[str, Any]:
        id_, consumer, time = (
            name(args.get("id")),
            word(args.get("consumer")),
            self.time(args, "expires_at", "lease_ms"),
        )
        version = self.version(args)
        self.thawed()
        if self.degraded:
            raise No("DEGRADED")
        m = self.held(id_, consumer)
        self.present(m, version)
        self.lease_length(time)
        m.timestamp, m.version = time, m.version + 1
        return {"ok": True, "version": m.version, "expires_at": time}

    def release(self, args: dict[str, Any]) -> dict[str, Any]:
        id_, consumer, time = name(args.get("id")), word(args.get("consumer")), self.time(args, "timestamp", "delay_ms")
        version = self.version(args)
        self.thawed()
        m = self.held(id_, consumer)
        self.present(m, version)
        self.soon(time)
        self.far(time)
        m.timestamp = time
        return self.put_back(m)

    def give_back(self, args: dict[str, Any]) -> dict[str, Any]:
        id_, consumer = name(args.get("id")), word(args.get("consumer"))
        version = integer(args.get("version"), 1)
        self.thawed()
        m = self.held(id_, consumer)
        if version != m.version:
            raise No("VERSION_MISMATCH", version=m.version)
        m.timestamp, m.deliveries = m.due_at, m.deliveries - 1
        return self.put_back(m)

    def put_back(self, m: Msg) -> dict[str, Any]:
        m.lock, m.lease_version, m.due_at, m.version = None, 0, 0, m.version + 1
        return {"ok": True, "version": m.version, "timestamp": m.timestamp, "status": self.status(m)}

    def complete(self, args: dict[str, Any]) -> dict[str, Any]:
        id_, consumer, version = name(args.get("id")), word(args.get("consumer")), self.version(args)
        self.thawed()
        tomb = self.messages.get(id_)
        if tomb is not None and tomb.deleted_at is not None and tomb.completed_by == consumer:
            return {"ok": True, "noop": True}
        m = self.held(id_, consumer)
        self.present(m, version)
        m.deleted_at, m.body, m.completed_by = self.now, b"", consumer
        return {"ok": True, "noop": False}

    # reads

    def get(self, args: dict[str, Any]) -> dict[str, Any]:
        id_ = args.get("id")
        m = self.known(id_)
        shown = {k: getattr(m, k) for k in ("timestamp", "lock", "group", "version", "lease_version", "due_at")}
        status = self.status(m)
        more = {"status": status, "leased": status == "processing", "bucket": self.bucket(id_, m)}
        return {"ok": True, "id": id_, "deliveries": m.deliveries, "created_at": m.created_at, **shown, **more}

    def read_body(self, args: dict[str, Any]) -> dict[str, Any]:
        m = self.known(args.get("id"))
        holder = self.status(m) == "processing" and m.lock == args.get("consumer")
        if m.group != args.get("group") and not holder:
            raise No("NOT_ALLOWED")
        return {"ok": True, "body": m.body}

    def due(self, _args: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "ids": self.available(None)}

    def counted(self, status: str | None) -> list[int]:
        return [m.timestamp for _, m in self.live() if (self.status(m) == status if status else m.parked is None)]

    def count(self, args: dict[str, Any]) -> dict[str, Any]:
        low = integer(args.get("from", 0))
        high = integer(args["to"]) if "to" in args else TOP + 1
        return {"ok": True, "total": sum(low <= t < high for t in self.counted(args.get("status")))}

    def histogram(self, args: dict[str, Any]) -> dict[str, Any]:
        low, high, step = integer(args["from"]), integer(args["to"]), args["step"]
        times, slots = self.counted(args.get("status")), []
        if high > low and (high - low + step - 1) // step > 1000:
            raise No("BAD_REQUEST")
        while low < high:
            slots.append(sum(low <= t < min(low + step, high) for t in times))
            low += step
        return {"ok": True, "slots": slots, "total": sum(slots)}

    def leases_of(self, args: dict[str, Any]) -> dict[str, Any]:
        held = [(m.timestamp, i.encode(), i) for i, m in self.live() if m.lock == args["consumer"]]
        return {"ok": True, "ids": [i for t, _, i in sorted(held) if t > self.now]}

    def owned_by(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True, "ids": sorted((i for i, m in self.live() if m.group == args["group"]), key=str.encode)}

    def parked(self, _args: dict[str, Any]) -> dict[str, Any]:
        found = sorted((m.parked, i) for i, m in self.live() if m.parked)
        return {"ok": True, "ids": [i for _, i in found]}

    # system

    def tick(self, _args: dict[str, Any]) -> dict[str, Any]:
        return {"ok": True}

    def clock(self, args: dict[str, Any]) -> dict[str, Any]:
        values = sorted(args["offsets"])
        n = len(values)
        if not n:
            raise No("BAD_REQUEST")
        middle = values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2
        self.degraded = abs(middle) >= self.s.degrade_offset_ms
        return {"ok": True, "median_ms": middle, "degraded": self.degraded}

    def purge(self, _args: dict[str, Any]) -> dict[str, Any]:
        window = self.s.dedup_window_ms
        gone = [i for i, m in self.messages.items() if m.deleted_at is not None and m.deleted_at + window <= self.now]
        kept = self.s.parked_retention_ms
        old = [i for i, m in self.live() if kept and m.parked and m.parked[0] + kept <= self.now]
        for id_ in gone + old:
            del self.messages[id_]
        waiting = {("", w.request) for w in self.waits}
        forgotten = [k for k, (at, _, _) in self.memory.items() if at + window <= self.now and k not in waiting]
        for key in forgotten:
            del self.memory[key]
        return {"ok": True, "purged": sorted(gone, key=str.encode), "parked": len(old), "requests": len(forgotten)}

    def leased_ids(self) -> list[str]:
        return sorted((i for i, m in self.live() if self.status(m) == "processing"), key=str.encode)

    def unwait(self, args: dict[str, Any]) -> dict[str, Any]:
        found = [w for w in self.waits if w.number == integer(args["waiter"], 1)]
        for wait in found:
            self.answered(wait, {"ok": True, "ids": [], "has_more": False, "waiting": False})
        return {"ok": True, "withdrawn": bool(found)}

    def listed(self, group: str | None, status: str | None, low: int, high: int) -> list[str]:
        return sorted(
            i
            for i, m in self.live()
            if low <= m.timestamp < high
            and group in (None, m.group)
            and (self.status(m) == status if status else group is not None or m.parked is None)
        )

    def freeze(self, _args: dict[str, Any]) -> dict[str, Any]:
        if self.leased_ids():
            raise No("LEASE_ACTIVE", ids=self.leased_ids())
        self.frozen = True
        return {"ok": True}

    def unfreeze(self, _args: dict[str, Any]) -> dict[str, Any]:
        self.frozen = False
        return {"ok": True}

    def drop(self, _args: dict[str, Any]) -> dict[str, Any]:
        if self.leased_ids():
            raise No("LEASE_ACTIVE", ids=self.leased_ids())
        self.messages, self.waits, self.memory = {}, [], {}
        self.frozen = self.buffers = False
        return {"ok": True}

    def buffer_in(self, args: dict[str, Any]) -> dict[str, Any]:
        id_ = f"{args['topic']}-{args['partition']}-{args['offset']}"
        self.buffers = True
        if id_ in self.messages:
            return {"ok": True, "id": id_, "duplicate": True}
        time = min(args["record_timestamp"] + args["delay_ms"], TOP)
        self.messages[id_] = Msg("buffer", time, self.now, b"", source=(args["partition"], args["offset"]))
        return {"ok": True, "id": id_, "duplicate": False}


CHANGES = ("create", "move", "cancel", "lease", "poll", "extend", "release", "complete", "give_back")
FREE = ("detail", "limit", "leases", "waiter", "headers", "due_at", "bucket", "body", "body_omitted")
"""Members that the model does not say; `get` says the last two."""

IDS = st.sampled_from(["a", "b", "c", "d", "é", "~", "\U0001f600"])
ODD_IDS = st.sampled_from(["", "x\0y", "é" * 128, "\ud800", None, 7])
WORDS = st.sampled_from(["C1", "C2", "é"])
GROUPS = st.sampled_from(["P1", "P1", "C1"])
NEAR = st.sampled_from([-60, -1, 0, 1, 4, 5, 6, 20, 49, 50, 51, 100, 101, 60_000, 90_000_000, 100_000_000, 100_000_001])
FEW = st.sampled_from([6, 20, 50, 100])
ODD_TIMES = st.sampled_from([-1, 0, TOP, TOP + 1, 2**70, True, "5", 1.0])
REQUESTS = st.sampled_from([None, None, None, "r1", "r2"])
VERSIONS = st.sampled_from([None, None, None, 0, 1, 2, 3, 4, "1"])
STATUSES = st.sampled_from([None, "available", "waiting", "processing", "parked"])
BUCKETS = st.sampled_from([None, None, None, [0, 1], [3, 2, 3], [4], []])


class TimelineMachine(RuleBasedStateMachine):
    """Drives both. `at` is the append time; it goes forwards mostly, and back at times."""

    start = 1_000

    def __init__(self) -> None:
        super().__init__()
        self.state, self.engine, self.model = MemoryState(), Engine(SETTINGS), Model(SETTINGS)
        self.at = self.start

    def do(self, op: str, args: dict[str, Any]) -> None:
        outcome = self.engine.apply(self.state, self.at, op, dict(args))
        expected = self.model.record(self.at, op, dict(args))
        answer = outcome.answer
        dropped = [key for key in FREE if key not in expected]
        assert {k: v for k, v in answer.items() if k not in dropped} == expected, (op, args)
        left = [("parked", e.id.decode()) for e in outcome.effects if isinstance(e, Parked)]
        left += [("emitted", e.id) for e in outcome.effects if isinstance(e, Emitted)]
        assert sorted(left) == sorted(self.model.left)

    def times(self, absolute: str, relative: str, delta: int, odd: Any) -> dict[str, Any]:
        """Absolute for even deltas, relative for odd ones; what is odd stands as it is."""
        if odd is not None:
            return {absolute: odd} if delta % 2 else {relative: odd}
        if delta % 2 == 0 or delta < 0:
            return {absolute: max(0, self.model.now + delta)}
        return {relative: delta}

    @rule(step=st.sampled_from([0, 1, 4, 5, 6, 15, 49, 50, 51, 60]))
    def pass_time(self, step: int) -> None:
        self.at = min(self.model.now + step, TOP)
        self.do("tick", {})

    @rule(step=st.integers(1, 80))
    def clock_goes_back(self, step: int) -> None:
        self.at = max(0, self.model.now - step)
        self.do("tick", {})

    @rule()
    def to_the_next_instant(self) -> None:
        """Exactly to the next timestamp, or one before it."""
        ahead = [m.timestamp for _, m in self.model.live() if m.timestamp > self.model.now]
        ahead += [w.end for w in self.model.waits]
        if ahead and min(ahead) < self.model.now + 10_000:
            self.at = min(ahead) - self.model.numbers % 2
            self.do("tick", {})

    @rule(id_=IDS, group=GROUPS, delta=NEAR, body=st.sampled_from(["", "x", "éé", "12345"]), request=REQUESTS)
    def create(self, id_: str, group: str, delta: int, body: str, request: str | None) -> None:
        times = self.times("timestamp", "delay_ms", delta, None)
        self.do("create", {"id": id_, "group": group, "body": body, "request_id": request, **times})

    @rule(op=st.sampled_from(["create", "move", "release", "lease", "extend"]), id_=st.one_of(IDS, ODD_IDS),
          odd=ODD_TIMES, delta=NEAR, who=st.sampled_from(["P1", "C1", "", None]), request=REQUESTS)  # fmt: skip
    def odd_arguments(self, op: str, id_: Any, odd: Any, delta: int, who: Any, request: str | None) -> None:
        lease = op in ("lease", "extend")
        times = self.times(*(("expires_at", "lease_ms") if lease else ("timestamp", "delay_ms")), delta, odd)
        actor = {"group": who} if op in ("create", "move") else {"consumer": who}
        self.do(op, {"id": id_, "request_id": request, **times, **actor})

    @rule(id_=IDS, group=GROUPS, delta=NEAR, version=VERSIONS, request=REQUESTS)
    def move(self, id_: str, group: str, delta: int, version: Any, request: str | None) -> None:
        times = self.times("timestamp", "delay_ms", delta, None)
        self.do("move", {"id": id_, "group": group, "version": version, "request_id": request, **times})

    @rule(id_=IDS, group=GROUPS, version=VERSIONS, request=REQUESTS)
    def cancel(self, id_: str, group: str, version: Any, request: str | None) -> None:
        self.do("cancel", {"id": id_, "group": group, "version": version, "request_id": request})

    @rule(op=st.sampled_from(["lease", "extend"]), id_=IDS, consumer=WORDS, delta=st.one_of(FEW, NEAR),
          version=VERSIONS, request=REQUESTS)  # fmt: skip
    def lease(self, op: str, id_: str, consumer: str, delta: int, version: Any, request: str | None) -> None:
        times = self.times("expires_at", "lease_ms", delta, None)
        self.do(op, {"id": id_, "consumer": consumer, "version": version, "request_id": request, **times})

    @rule(id_=IDS, consumer=WORDS, delta=NEAR, version=VERSIONS)
    def release(self, id_: str, consumer: str, delta: int, version: Any) -> None:
        times = self.times("timestamp", "delay_ms", delta, None)
        self.do("release", {"id": id_, "consumer": consumer, "version": version, **times})

    @rule(data=st.data(), op=st.sampled_from(["extend", "release", "complete", "give_back"]), delta=FEW)
    def by_the_holder(self, data: st.DataObject, op: str, delta: int) -> None:
        """A holder call that has a chance: on a locked message, with a version around the present lease."""
        locked = [(i, m) for i, m in self.model.live() if m.lock is not None]
        if not locked:
            return
        id_, m = data.draw(st.sampled_from(locked))
        version = data.draw(st.sampled_from([m.lease_version - 1, m.lease_version, m.version, m.version + 1]))
        pair = {"extend": ("expires_at", "lease_ms"), "release": ("timestamp", "delay_ms")}.get(op)
        times = self.times(*pair, delta, None) if pair else {}
        self.do(op, {"id": id_, "consumer": m.lock, "version": version, **times})

    @rule(op=st.sampled_from(["complete", "give_back"]), id_=IDS, consumer=WORDS, version=VERSIONS, request=REQUESTS)
    def complete(self, op: str, id_: str, consumer: str, version: Any, request: str | None) -> None:
        self.do(op, {"id": id_, "consumer": consumer, "version": version, "request_id": request})

    @rule(consumer=WORDS, delta=FEW, limit=st.integers(1, 5), buckets=BUCKETS, request=REQUESTS,
          wait=st.sampled_from([None, None, 0, 1, 40]))  # fmt: skip
    def poll(self, consumer: str, delta: int, limit: int, buckets: Any, request: str | None, wait: int | None) -> None:
        args = {"consumer": consumer, "limit": limit, "buckets": buckets, "request_id": request, "wait_ms": wait}
        self.do("poll", args | {"lease_ms": delta})

    @rule(consumer=st.one_of(WORDS, st.just("")), limit=st.sampled_from([0, 1, 5, 6, "1", None]), delta=NEAR,
          wait=st.sampled_from([None, -1, 0, 41, 10]))  # fmt: skip
    def odd_poll(self, consumer: str, limit: Any, delta: int, wait: Any) -> None:
        times = self.times("expires_at", "lease_ms", delta, None)
        self.do("poll", {"consumer": consumer, "limit": limit, "wait_ms": wait, **times})

    @rule(offsets=st.sampled_from([[0], [2000], [-2000], [1999, 2000], [5, 5000, 6], [], [-9000, 1, 5000, 4001]]))
    def clock(self, offsets: list[int]) -> None:
        self.do("clock", {"offsets": offsets})

    @rule()
    def purge(self) -> None:
        self.do("purge", {})

    @rule(op=st.sampled_from(["freeze", "unfreeze", "unfreeze", "unfreeze", "drop"]))
    def system(self, op: str) -> None:
        self.do(op, {})

    @rule(id_=st.one_of(IDS, ODD_IDS), who=st.sampled_from(["P1", "C1", "C2"]))
    def reads(self, id_: Any, who: str) -> None:
        self.do("get", {"id": id_})
        self.do("read_body", {"id": id_, "group": who, "consumer": who})
        self.do("leases_of", {"consumer": who})
        self.do("owned_by", {"group": who})

    @rule(low=NEAR, high=NEAR, status=STATUSES, step=st.sampled_from([1, 7, 60_000, 86_400_000, TOP]))
    def counts(self, low: int, high: int, status: str | None, step: int) -> None:
        low, high = max(0, self.model.now + low), max(0, self.model.now + high)
        self.do("count", {"from": low, "to": high, "status": status})
        self.do("count", {"status": status})
        self.do("count", {"from": low})
        if (high - low) // step < 1000:
            self.do("histogram", {"from": low, "to": high, "step": step, "status": status})

    @rule(back=st.integers(0, 3))
    def unwait(self, back: int) -> None:
        self.do("unwait", {"waiter": max(1, self.model.numbers - back)})

    @rule(group=st.sampled_from([None, "P1", "C1"]), status=STATUSES, low=NEAR, high=NEAR, limit=st.integers(1, 3))
    def list_by_pages(self, group: str | None, status: str | None, low: int, high: int, limit: int) -> None:
        now = self.model.now
        args = {"group": group, "status": status, "from": min(TOP, max(0, now + low)), "to": min(TOP, now + abs(high))}
        ids, cursor = list[str](), None
        while True:
            page = self.engine.apply(self.state, self.at, "list", {**args, "limit": limit, "cursor": cursor}).answer
            self.model.record(self.at, "tick", {})
            ids += page["ids"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert sorted(ids) == self.model.listed(group, status, args["from"], args["to"])

    @rule()
    def look(self) -> None:
        self.do("due", {})
        self.do("parked", {})

    @rule()
    def restart(self) -> None:
        """What the changelog holds gives back the same state, derived keys and all."""
        fresh = MemoryState({k: v for k, v in self.state.snapshot().items() if k[0] in keys.PRIMARY})
        for key, value in list(fresh.snapshot().items()):
            derive(fresh, key, value)
        assert fresh.snapshot() == self.state.snapshot()
        self.state, self.engine = fresh, Engine(SETTINGS)

    def teardown(self) -> None:
        for id_ in list(self.model.messages):
            self.do("get", {"id": id_})
        self.look()
        self.counts(-60, 100, None, 7)
        self.restart()


class BufferMachine(TimelineMachine):
    """The same with a time buffer beside: records come again and late, and leave once, in order."""

    @initialize()
    def first_record(self) -> None:
        self.source(0, 0, 0)

    @rule(partition=st.integers(0, 5), offset=st.sampled_from([0, 1, 2, 9, 10, 100]), delta=NEAR)
    def source(self, partition: int, offset: int, delta: int) -> None:
        at = max(0, self.model.now + min(delta, 101))
        args = {"topic": "in", "partition": partition, "offset": offset, "record_timestamp": at, "delay_ms": 20}
        self.do("buffer_in", args)

    @precondition(lambda self: any(m.source for _, m in self.model.live()))
    @rule(data=st.data(), delta=NEAR, op=st.sampled_from(["cancel", "move"]))
    def by_the_owner(self, data: st.DataObject, delta: int, op: str) -> None:
        id_ = data.draw(st.sampled_from([i for i, m in self.model.live() if m.source]))
        times = self.times("timestamp", "delay_ms", delta, None) if op == "move" else {}
        self.do(op, {"id": id_, "group": "buffer", **times})


class LastInstants(TimelineMachine):
    """The same at the end of int64."""

    start = TOP - 200


TestTimeline = TimelineMachine.TestCase
TestTimeline.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestBuffer = BufferMachine.TestCase
TestBuffer.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestLastInstants = LastInstants.TestCase
TestLastInstants.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
