"""Registering (registration.md 5, 6.5, 7): an entity, everything it releases, and automatic registration.

A registration puts out the entity, its initial twin data, its cached data, then what waited for it: the children, each
in the same way, depth first, then (with `auto_register`) the services on it whose data waits. The walk keeps its own
stack, so chains may have any length. One that cannot be registered loses its registration only; the others go on.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from headrace_core.registration import status, topics
from headrace_core.registration.cache import pending
from headrace_core.registration.effects import Passed, Published, Registered, TwinChanged
from headrace_core.registration.items import Entity, key, name_of
from headrace_core.registration.message import Definition, Message, parse_definition, read_payload, write_json
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.work import Work, document, publication


class Step(NamedTuple):
    """One thing still to do in a release. `what`: `child`, `services` (of a device), `service` (by itself)."""

    what: str
    entity: str


def check_new(work: Work, root: str, tid: str, definition: Definition, parent: str | None) -> str:
    """The external id of a new entity whose parent is registered. Raises Refusal (section 4, last part)."""
    store, main_id = work.store, work.config.roots[root]
    above = None if parent is None else store.entity(root, parent)
    if parent is not None and above is None:
        raise Refusal("no_parent", f"{parent} is not registered")
    if above is not None and above.type == "service":
        raise Refusal("invalid_parent", f"{parent} is a service")
    if definition.type == "device":
        if definition.id not in (None, main_id):
            raise Refusal("id_change", "a device has the external id of the main device")
        return main_id
    external = definition.id if definition.id is not None else topics.default_id(main_id, tid)
    if external == main_id or store.owner(root, external) is not None:
        raise Refusal("id_in_use", f"{external} is taken")
    return external


def register(work: Work, root: str, tid: str, definition: Definition) -> None:
    """Register a new entity over MQTT or HTTP and release what waited for it. Raises Refusal, nothing has changed."""
    external = check_new(work, root, tid, definition, definition.resolved_parent(tid))
    if work.store.waiting(root, tid) is not None:
        work.store.count("replaced")
    _run(work, root, _put(work, root, tid, definition, external, automatic=False))


def echoed(entity: Entity) -> Entity:
    """With the content of its publication, so that the echo is a repeat even if a PATCH overtakes it (8.2)."""
    return replace(entity, content=publication(entity))


def _put(work: Work, root: str, tid: str, definition: Definition, external: str, *, automatic: bool) -> list[Step]:
    """Store and put out one entity with its own data; returns what follows it."""
    store = work.store
    cached = pending.take(work, root, tid)
    status.forget(work, root, tid)
    content = write_json(definition.content())
    parent = definition.resolved_parent(tid)
    entity = Entity(definition.type, external, parent, definition.health, automatic, work.now, content, retained=False)
    if automatic:
        entity = echoed(entity)
    store.put(b"E" + name_of(root, tid), entity)
    store.tally(root, f"entities.{entity.type}")
    store.tally(root, "automatic", int(automatic))
    work.touch(root, tid)
    work.emit(Registered(root, tid, document(tid, entity), automatic))
    if automatic:
        work.emit(Published(f"{root}/{tid}", publication(entity)))
    else:
        for name, value in definition.twin.items():
            set_twin(work, root, tid, name, value)
    if cached:
        store.count("replayed", len(cached))
    for item in cached:
        pass_on(work, root, tid, item.channel, item.message)
    return _followers(work, root, tid)


def _followers(work: Work, root: str, tid: str) -> list[Step]:
    steps = [Step("child", child) for child in work.store.names(key(b"Q", root, tid))]
    if work.config.auto_register and topics.default_type(tid) in ("device", "child-device"):
        steps.append(Step("services", tid))
    return steps


def _run(work: Work, root: str, steps: list[Step]) -> None:
    stack = steps[::-1]
    while stack:
        step = stack.pop()
        match step.what:
            case "child":
                following = _release(work, root, step.entity)
            case "services":
                following = [Step("service", s) for s in work.store.names(key(b"S", root, step.entity))]
            case _:
                following = _follow(work, root, step.entity)
        stack.extend(reversed(following))


def _release(work: Work, root: str, tid: str) -> list[Step]:
    """Register a waiting child whose parent is there now, or end its registration with the reason (5.4)."""
    waiting = work.store.waiting(root, tid)
    if waiting is None:
        return []
    try:
        definition = parse_definition(work.config, tid, waiting.message.payload)
        external = check_new(work, root, tid, definition, waiting.parent)
    except Refusal as refusal:
        pending.end_waiting(work, root, tid)
        status.set_error(work, root, tid, refusal)
        work.drop(waiting.message, root, refusal)
        return []
    work.store.count("applied")
    note_spelling(work, root, tid, waiting.message.topic)
    return _put(work, root, tid, definition, external, automatic=False)


def note_spelling(work: Work, root: str, tid: str, topic: str) -> None:
    """Remember the topic of a registration that is spelled with other slashes at its end (section 3).

    It names the same entity, but the broker retains it beside the others: a removal has to clear it too (section 9).
    """
    if topic != f"{root}/{tid}":
        work.store.write(b"R" + name_of(root, tid) + topic.encode(), b"")


def _follow(work: Work, root: str, tid: str) -> list[Step]:
    """A service whose data waits follows its device by itself (section 7)."""
    entry = work.store.pending(root, tid)
    if entry is None or not entry.suitable or entry.waiting:
        return []
    return _automatic(work, root, tid) or []


def register_automatically(work: Work, root: str, tid: str) -> None:
    """Register what is missing of a default-scheme entity: the device in its topic, then itself (section 7)."""
    for missing in dict.fromkeys((topics.device_of(tid), tid)):
        if work.store.entity(root, missing) is not None:
            continue
        if work.store.waiting(root, missing) is not None:
            return
        steps = _automatic(work, root, missing)
        if steps is None:
            return
        _run(work, root, steps)


def _automatic(work: Work, root: str, tid: str) -> list[Step] | None:
    """Register one entity by itself; None if that is impossible, which is counted and shown in its status."""
    kind = topics.default_type(tid)
    assert kind is not None
    definition = Definition(kind, twin={"name": topics.last_segment(tid)})
    try:
        external = check_new(work, root, tid, definition, definition.resolved_parent(tid))
    except Refusal as refusal:
        work.count_reason(root, refusal.reason)
        work.store.count(f"automatic_refused.{refusal.reason}")
        status.set_error(work, root, tid, refusal)
        return None
    return _put(work, root, tid, definition, external, automatic=True)


def pass_on(work: Work, root: str, tid: str, channel: str, message: Message) -> None:
    """Put out a message of a registered entity, and remember what removal and the API need of it."""
    store = work.store
    mark(work, root, tid, message.topic, retained=message.retained and bool(message.payload))
    if channel.startswith("twin/") or channel == "config":
        name = b"G" + name_of(root, tid) if channel == "config" else b"T" + name_of(root, tid) + channel[5:].encode()
        try:
            value = None if not message.payload else read_payload(message.payload)
            store.write(name, None if value is None else write_json(value))
        except ValueError:
            pass  # not judged here (6.5); what was known stays known
    work.emit(Passed(root, tid, channel, message))


def mark(work: Work, root: str, tid: str, topic: str, *, retained: bool) -> None:
    """Remember whether the last message of a data topic was retained and not empty (section 9)."""
    store = work.store
    if retained:
        store.write(b"V" + name_of(root, tid) + topic.encode(), b"")
        if not store.has_retained(root, tid) and (entity := store.entity(root, tid)) is not None:
            store.put(b"E" + name_of(root, tid), replace(entity, retained=True))
    elif store.has_retained(root, tid):
        name = b"V" + name_of(root, tid) + topic.encode()
        if store.raw(name) is not None:
            store.delete(name)


def set_twin(work: Work, root: str, tid: str, name: str, value: object) -> None:
    """Set one twin value (None removes it) and put it out."""
    raw = b"T" + name_of(root, tid) + name.encode()
    work.store.write(raw, None if value is None else write_json(value))
    work.emit(TwinChanged(root, tid, name, value))
