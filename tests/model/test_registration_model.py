"""The registration engine beside a slow, obvious model written from registration.md.

The model keeps everything in one list of cached items in order of arrival and looks through all of it each time. What
comes out, what is lost, what is registered and what is pending must be the same after every step; restarts lose
nothing; counters add up; and the indexes are always those that the primary items give.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.registration.config import MAIN, RegistrationConfig
from headrace_core.registration.effects import (
    Cleared,
    Dropped,
    Opened,
    Passed,
    Published,
    Registered,
    Removed,
    StatusChanged,
    TwinChanged,
    Updated,
)
from headrace_core.registration.engine import Engine
from headrace_core.registration.items import PRIMARY, derived, parts
from headrace_core.registration.stage import RegistrationStage
from headrace_core.registration.store import Store
from headrace_core.state import MemoryState

DEVICES = ("device/a//", "device/b//", "device/c//", "cell/1//")
SERVICES = ("device/a/service/s", "device/b/service/s")
CHANNELS = {"m/t": "telemetry", "e/x": "telemetry", "twin/k": "meta", "cmd/go/1": "call", "signal/x": "signal"}


@dataclass
class Item:
    """Something kept for an entity: `kind` telemetry, meta, call, or wait (a registration)."""

    kind: str
    tid: str
    topic: str
    payload: bytes
    at: int
    step: int
    retained: bool
    registers: bool = False
    parent: str = ""
    order: int = 0

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.payload)


@dataclass
class Node:
    type: str
    id: str
    parent: str | None
    content: dict[str, Any]
    retained: set[str] = field(default_factory=set)


class Model:
    """One root `te`. `kept` is in order of arrival; `since` holds each pending entity's age."""

    def __init__(self, config: RegistrationConfig) -> None:
        self.config = config
        self.nodes = {MAIN: Node("device", "main-dev", None, {})}
        self.kept: list[Item] = []
        self.since: dict[str, tuple[int, int]] = {}
        self.now = self.step = self.orders = 0
        self.out: list[tuple[Any, ...]] = []
        self.lost: list[tuple[int, str]] = []

    # what is pending

    def of(self, tid: str, *kinds: str) -> list[Item]:
        return [i for i in self.kept if i.tid == tid and i.kind in kinds]

    def waits(self, tid: str) -> Item | None:
        return next(iter(self.of(tid, "wait")), None)

    def keep(self, item: Item) -> None:
        self.kept.append(item)
        self.since.setdefault(item.tid, (self.now, self.step))

    def drop(self, item: Item, reason: str) -> None:
        self.kept = [i for i in self.kept if i is not item]
        self.lost.append((item.step, reason))
        self.tidy()

    def tidy(self) -> None:
        self.since = {t: s for t, s in self.since.items() if any(i.tid == t for i in self.kept)}

    def metadata(self) -> int:
        return sum(i.size for i in self.kept if i.kind != "telemetry")

    def advance(self, at: int) -> None:
        self.now = max(self.now, at)
        for tid, (since, _) in list(self.since.items()):
            if self.now >= since + self.config.pending_ttl:
                for item in [i for i in self.kept if i.tid == tid]:
                    self.drop(item, "expired")

    # messages

    def registration(self, tid: str, payload: bytes, value: dict[str, Any]) -> None:
        kind, parent = value["@type"], value.get("@parent")
        try:
            if parent == tid or (kind == "device" and parent):
                raise ValueError("invalid_parent")
            if tid in self.nodes:
                self.update(tid, kind, value)
                return
            parent = self.parent_of(tid, value)
            if parent not in self.nodes and parent is not None:
                self.wait(tid, payload, parent)
                return
            external = self.check(tid, value, parent)
        except ValueError as error:
            self.lost.append((self.step, str(error)))
            return
        self.put(tid, value, external, automatic=False)

    def parent_of(self, tid: str, value: dict[str, Any]) -> str | None:
        if value.get("@parent") or value["@type"] == "device":
            return value.get("@parent")
        if value["@type"] == "service" and tid in SERVICES:
            return tid[:8] + "//"
        return MAIN

    def check(self, tid: str, value: dict[str, Any], parent: str | None) -> str:
        if parent is not None and self.nodes[parent].type == "service":
            raise ValueError("invalid_parent")
        if value["@type"] == "device":
            if value.get("@id", "main-dev") != "main-dev":
                raise ValueError("id_change")
            return "main-dev"
        external = value.get("@id") or "main-dev:" + tid.rstrip("/").replace("/", ":")
        if any(n.id == external for n in self.nodes.values()):
            raise ValueError("id_in_use")
        return external

    def wait(self, tid: str, payload: bytes, parent: str) -> None:
        before = self.waits(tid)
        item = Item("wait", tid, "te/" + tid, payload, self.now, self.step, True, parent=parent)
        if self.metadata() - (before.size if before else 0) + item.size > self.config.metadata_cache_bytes:
            raise ValueError("metadata_full")
        self.orders += 1
        item.order = before.order if before and before.parent == parent else self.orders
        self.keep(item)
        self.kept = [i for i in self.kept if i is not before]

    def update(self, tid: str, kind: str, value: dict[str, Any]) -> None:
        node = self.nodes[tid]
        if kind != node.type:
            raise ValueError("type_change")
        if value.get("@id", node.id) != node.id:
            raise ValueError("id_change")
        if value == node.content:
            return
        parent = value.get("@parent", node.parent)
        if parent != node.parent:
            if parent not in self.nodes:
                raise ValueError("no_parent")
            if node.type == "device" or self.nodes[parent].type == "service" or tid in self.above(parent):
                raise ValueError("invalid_parent")
            node.parent = parent
            self.out.append(("update", tid))
        node.content = value

    def above(self, tid: str | None) -> list[str]:
        return [] if tid is None else [tid, *self.above(self.nodes[tid].parent)]

    def put(self, tid: str, value: dict[str, Any], external: str, *, automatic: bool) -> None:
        """Register, replay, then release what waited: children, then services on it."""
        self.nodes[tid] = Node(value["@type"], external, self.parent_of(tid, value), value)
        self.out.append(("register", tid, automatic))
        own = self.of(tid, "meta", "call") + self.of(tid, "telemetry")
        self.kept = [i for i in self.kept if i.tid != tid]
        ages, self.since = self.since, {t: s for t, s in self.since.items() if t != tid}
        for item in own:
            self.passed(item)
        for child in sorted((i for i in self.kept if i.kind == "wait" and i.parent == tid), key=lambda i: i.order):
            self.release(child)
        if self.config.auto_register and tid in DEVICES:
            on_it = [s for s in SERVICES if s[:8] + "//" == tid and s in ages]
            for service in sorted(on_it, key=lambda s: ages[s]):
                if service in self.since and self.suitable(service) and not self.waits(service):
                    self.automatic(service)

    def suitable(self, tid: str) -> bool:
        return any(i.registers for i in self.kept if i.tid == tid)

    def release(self, child: Item) -> None:
        value = json.loads(child.payload)
        try:
            external = self.check(child.tid, value, child.parent)
        except ValueError as error:
            self.drop(child, str(error))
            return
        self.put(child.tid, value, external, automatic=False)

    def automatic(self, tid: str) -> bool:
        value = {"@type": "service" if tid in SERVICES else "child-device"}
        try:
            external = self.check(tid, value, self.parent_of(tid, value))
        except ValueError:
            return False
        self.put(tid, value | {"name": tid.rstrip("/").split("/")[-1]}, external, automatic=True)
        return True

    def passed(self, item: Item) -> None:
        self.out.append(("data", item.step))
        topics = self.nodes[item.tid].retained
        (topics.add if item.retained and item.payload else topics.discard)(item.topic)

    def data(self, tid: str, channel: str, payload: bytes, retained: bool) -> None:
        kind = CHANNELS[channel]
        item = Item(kind, tid, f"te/{tid}/{channel}", payload, self.now, self.step, retained)
        item.registers = kind in ("telemetry", "meta") and bool(payload)
        if tid not in self.nodes:
            if kind == "signal":
                self.lost.append((self.step, "unregistered_signal"))
                return
            if not payload and tid not in self.since:
                self.lost.append((self.step, "clear_of_unknown"))
                return
            if self.config.auto_register and item.registers and not tid.startswith("cell"):
                for missing in dict.fromkeys((tid[:8] + "//", tid)):
                    if missing not in self.nodes and (self.waits(missing) or not self.automatic(missing)):
                        break
        if tid in self.nodes:
            self.passed(item)
        elif kind == "telemetry":
            self.ring(item)
        elif self.metadata() + item.size > self.config.metadata_cache_bytes:
            self.lost.append((self.step, "metadata_full"))
        else:
            self.keep(item)

    def ring(self, item: Item) -> None:
        if item.size > self.config.telemetry_cache_bytes:
            self.lost.append((self.step, "too_large"))
            return
        self.keep(item)
        own, each = self.of(item.tid, "telemetry"), self.config.telemetry_cache_per_entity
        if each is not None and len(own) > each:
            self.drop(own[0], "evicted")
        while True:
            ring = [i for i in self.kept if i.kind == "telemetry"]
            size = sum(i.size for i in ring)
            if len(ring) <= self.config.telemetry_cache_size and size <= self.config.telemetry_cache_bytes:
                return
            self.drop(ring[0], "evicted")

    def remove(self, tid: str) -> None:
        if tid in self.nodes:
            self.remove_tree(tid)
            return
        for item in [i for i in self.kept if i.tid == tid]:
            self.drop(item, "cancelled")

    def remove_tree(self, tid: str) -> None:
        for child in sorted((t for t, n in self.nodes.items() if n.parent == tid), reverse=True):
            self.remove_tree(child)
        for topic in sorted(self.nodes.pop(tid).retained):
            self.out.append(("clear", topic))
        self.out.append(("remove", tid))


ids = st.sampled_from(DEVICES + SERVICES)
definitions = st.fixed_dictionaries(
    {"@type": st.sampled_from(("child-device", "child-device", "service", "device"))},
    optional={"@parent": st.sampled_from((*DEVICES, *SERVICES[:1], MAIN)), "@id": st.sampled_from(("x", "y"))},
)
payloads = st.sampled_from((b"1", b"{broken", b'"a longer value"', b""))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("define"), ids, definitions),
        st.tuples(st.just("define"), ids, definitions),
        st.tuples(st.just("data"), ids, st.sampled_from(sorted(CHANNELS)), payloads, st.booleans()),
        st.tuples(st.just("data"), ids, st.sampled_from(sorted(CHANNELS)), payloads, st.booleans()),
        st.tuples(st.just("remove"), ids),
        st.tuples(st.just("tick")),
        st.tuples(st.just("restart")),
    ),
    min_size=40,
    max_size=60,
)
configs = st.fixed_dictionaries(
    {
        "auto_register": st.booleans(),
        "telemetry_cache_size": st.sampled_from((0, 2, 5)),
        "telemetry_cache_per_entity": st.sampled_from((None, 1, 2)),
        "telemetry_cache_bytes": st.sampled_from((25, 70, 1000)),
        "metadata_cache_bytes": st.sampled_from((150, 10_000, 10_000)),
        "pending_ttl": st.sampled_from((40, 1000)),
        "status_history": st.sampled_from((0, 2, 100)),
        "status_retention": st.sampled_from((30, 1000)),
    }
)


def simple(effects: list[Any]) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
    """Effects in the words of the model: what is put out, and what is lost."""
    out: list[tuple[Any, ...]] = []
    lost: list[tuple[int, str]] = []
    for effect in effects:
        match effect:
            case Registered():
                out.append(("register", effect.entity, effect.automatic))
            case Updated():
                out.append(("update", effect.entity))
            case Passed():
                out.append(("data", effect.message.ref))
            case Cleared():
                out.append(("clear", effect.topic))
            case Removed():
                out.append(("remove", effect.entity))
            case Dropped():
                lost.append((effect.message.ref, effect.reason))
            case Opened() | Published() | StatusChanged():
                pass
            case TwinChanged():
                raise AssertionError("no twin data here")
    return out, lost


def run(engine: Engine, model: Model, step: tuple[Any, ...], at: int, ref: int) -> list[Any]:
    """Give one step to both."""
    model.step = ref
    model.advance(at)
    match step:
        case ("define", tid, value):
            payload = json.dumps(value).encode()
            model.registration(tid, payload, value)
            return engine.message(f"te/{tid}", payload, retained=True, receipt_ms=at, ref=ref)
        case ("data", tid, channel, payload, retained):
            model.data(tid, channel, payload, retained)
            return engine.message(f"te/{tid}/{channel}", payload, retained=retained, receipt_ms=at, ref=ref)
        case ("remove", tid):
            model.remove(tid)
            return engine.message(f"te/{tid}", b"", retained=True, receipt_ms=at, ref=ref)
    return engine.tick(at)


def check_state(state: MemoryState, config: RegistrationConfig, model: Model) -> None:
    store = Store(state)
    names = [parts(k, 2)[0][1] for k, _ in state.scan(b"E", b"F")]
    assert sorted({MAIN, *names}) == sorted(model.nodes)
    for tid in names:
        entity = store.entity("te", tid)
        assert entity is not None
        assert (entity.type, entity.id, entity.parent) == (
            model.nodes[tid].type,
            model.nodes[tid].id,
            model.nodes[tid].parent,
        )
    pending = {parts(k, 2)[0][1]: store.pending("te", parts(k, 2)[0][1]) for k, _ in state.scan(b"P", b"Q")}
    assert {t: p.since for t, p in pending.items() if p} == {t: s for t, (s, _) in model.since.items()}
    for tid, entry in pending.items():
        assert entry is not None
        counts = (entry.telemetry, entry.metadata, entry.waiting)
        assert counts == (len(model.of(tid, "telemetry")), len(model.of(tid, "meta", "call")), bool(model.waits(tid)))
    assert store.total("te", "metadata_bytes") == model.metadata()
    assert store.total("te", "idle") == sum(1 for _ in state.scan(b"Z", b"[")) <= config.status_history
    gauges = RegistrationStage(config).gauges(state)
    words = ("passed", "replayed", "applied", "no_effect", "replaced", "refused.", "lost.", "discarded.", "pending")
    assert gauges["in"] == sum(n for name, n in gauges.items() if name.startswith(words))
    assert gauges["pending"] == len(model.kept)


def check_indexes(state: MemoryState) -> None:
    items = state.snapshot()
    primary = {k: v for k, v in items.items() if k[0] in PRIMARY}
    wanted = dict(primary)
    for raw, value in primary.items():
        wanted |= derived(raw, value)
    assert items == wanted


@settings(max_examples=100, deadline=None)
@given(configs, steps, st.lists(st.integers(0, 15), min_size=60, max_size=60))
def test_engine_and_model_agree(settings_: dict[str, Any], script: list[tuple[Any, ...]], gaps: list[int]) -> None:
    config = RegistrationConfig(**settings_)
    model, state = Model(config), MemoryState()
    at = 0
    for ref, step in enumerate(script):
        at += gaps[ref]
        if step[0] == "restart":
            state = MemoryState(state.snapshot())
            continue
        model.out, model.lost = [], []
        out, lost = simple(run(Engine(state, config), model, step, at, ref))
        assert out == model.out
        assert sorted(lost) == sorted(model.lost)
        check_state(state, config, model)
    check_indexes(state)
