"""The registration stage: records of `raw` in, records of `routed` and the others out (registration.md 1, 10, 11).

A record is a message (header `topic`), a tick or flush (moves the clock, copied to `routed`), or a request (an HTTP
write, answered in `replies`). Whatever else it is, it becomes a dead letter.

Counters are items of the state, so they are exact after any crash:
`in` = `passed` + `replayed` + `applied` + `no_effect` + `replaced` + `refused.*` + `lost.*` + `discarded.*`
+ `pending`.
Beside that sum: `requests`, `unreadable`, `damaged`, `automatic_refused.*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.documents.outputs import STAGE, Outputs
from headrace_core.registration.effects import Effect
from headrace_core.registration.engine import Engine
from headrace_core.registration.items import PRIMARY, parts, sound_items
from headrace_core.registration.message import read_payload
from headrace_core.registration.reasons import DISCARDED, LOST, outcome
from headrace_core.registration.routes import ABSENT, Request
from headrace_core.registration.store import Store
from headrace_core.stage import UNREADABLE, Emission, Headers, Record
from headrace_core.state import State

REFUSED = (
    "invalid_topic", "unknown_channel", "invalid_topic_id", "invalid_payload", "missing_type", "invalid_type",
    "invalid_id", "invalid_twin_key", "invalid_parent", "no_parent", "type_change", "id_change", "main_protected",
    "id_in_use",
)  # fmt: skip
"""Reasons of section 11 that an MQTT message can be refused for."""
REASONS = (*REFUSED, *sorted(LOST), *sorted(DISCARDED))
ALWAYS = (
    "in", "passed", "replayed", "applied", "no_effect", "replaced", "pending", "requests", "unreadable", "damaged",
    "warnings.unknown_member", "automatic_refused.id_in_use", "automatic_refused.invalid_parent",
    *(f"{outcome(reason)}.{reason}" for reason in REASONS),
)  # fmt: skip
"""Names that are told from the start; others when they are counted first."""
INTERNAL = ("moves", "moves_forgotten")
"""Tallies of a root that serve a listing, not people."""


Fields = tuple[bytes | None, bytes | None, bytes | None]
"""The headers kind, topic and retain."""


def fields_of(headers: Headers) -> Fields:
    """None for a header that is not there; of two with one name the first counts.

    Messages come with these five, in the order in which the bridge writes them, so they are taken by their places.
    """
    if len(headers) == 5:
        (a, topic), (b, _), (c, retain), (d, _), (e, _) = headers
        if a == "topic" and b == "qos" and c == "retain" and d == "dup" and e == "received":
            return None, topic, retain
    found = dict(reversed(headers)).get
    return found("kind"), found("topic"), found("retain")


class RegistrationStage:
    """headrace_core.stage.Stage; what it keeps between calls is that of one chunk."""

    name = STAGE
    primary = PRIMARY

    def __init__(self, config: RegistrationConfig) -> None:
        self._config = config
        self._state: State | None = None
        self._engine: Engine | None = None

    def apply(self, state: State, record: Record, emit: Callable[[Emission], None]) -> None:
        """Apply one record of `raw`; see headrace_core.stage.Stage."""
        engine = self._engine
        if engine is None or state is not self._state or not engine.store.keeps:
            engine, self._state = Engine(state, self._config), state
            self._engine = engine
        kind, topic, retain = fields_of(record.headers)
        if kind is None:
            _put_out(engine, record, _message(engine, record, topic, retain), emit)
        elif kind == b"request":
            _request(engine, record, emit)
        elif kind in (b"tick", b"flush"):
            _put_out(engine, record, engine.tick(record.append_ms), emit).copy(kind)
        else:
            odd = kind == UNREADABLE[1]
            detail = "the name of a header is not UTF-8" if odd else "unknown kind of record"
            _unreadable(engine, record, detail, emit)

    def derive(self, state: State, key: bytes, value: bytes) -> None:
        """Write the index items of one primary item; a damaged item is taken out and counted (section 10).

        So is a registration that waits without its pending entry, which was damaged: it would never stop waiting.
        """
        items = sound_items(key, value)
        if items is None or (key[:1] == b"W" and state.get(b"P" + key[1:]) is None):
            state.delete(key)
            Store(state).count("damaged")
            return
        for index, item in items.items():
            state.put(index, item)

    def next_due(self, state: State) -> int | None:
        """Log time (ms) at which something pending or a status is over without further records."""
        return Engine(state, self._config).next_due()

    def follows_clock(self, state: State) -> bool:
        """Ticks come at every interval while anything is pending (section 1), whose age they show; not for a status."""
        return Store(state).first_under(b"X") is not None

    def ages(self, state: State) -> Mapping[str, int]:
        """Age of the oldest pending entity."""
        store = Store(state)
        found = store.first_under(b"X")
        return {"oldest_pending": 0 if found is None else store.clock - int.from_bytes(found[0][1:9], "big")}

    def root_gauges(self, state: State) -> Iterator[tuple[str, str, int]]:
        """Entities, pending ones, cached messages and reasons of each root (sections 11, 13)."""
        store = Store(state)
        for raw, _ in store.under(b"t"):
            (root,), name = parts(raw, 1)
            if name.decode() not in INTERNAL:
                yield root, name.decode(), store.number(raw)

    def gauges(self, state: State) -> Mapping[str, int]:
        """Counters by name."""
        store = Store(state)
        found = dict.fromkeys(ALWAYS, 0)
        return found | {raw[1:].decode(): store.number(raw) for raw, _ in store.under(b"n")}

    def forget(self) -> None:
        """Empty the cache: a chunk that is given up leaves nothing behind."""
        self._state = self._engine = None


def _put_out(engine: Engine, record: Record, effects: list[Effect], emit: Callable[[Emission], None]) -> Outputs:
    outputs = Outputs(record, engine.now, emit)
    for effect in effects:
        outputs.effect(effect)
    return outputs


def _unreadable(engine: Engine, record: Record, detail: str, emit: Callable[[Emission], None]) -> None:
    outputs = _put_out(engine, record, engine.tick(record.append_ms), emit)
    engine.store.count("unreadable")
    outputs.unreadable(detail)


def _message(engine: Engine, record: Record, raw: bytes | None, flag: bytes | None) -> list[Effect]:
    payload = record.value or b""
    try:
        if raw is None:
            raise ValueError("no topic header")
        topic = raw.decode()
    except ValueError as error:
        return engine.unreadable(
            "" if raw is None else raw.decode(errors="replace"),
            payload,
            receipt_ms=record.append_ms,
            ref=record.offset,
            detail=str(error),
        )
    retained = None if flag is None else flag == b"1"
    return engine.message(topic, payload, retained=retained, receipt_ms=record.append_ms, ref=record.offset)


def _request(engine: Engine, record: Record, emit: Callable[[Emission], None]) -> None:
    """Apply an HTTP write and answer it, after what it caused."""
    try:
        correlation, request = read_request(record.value or b"")
    except ValueError as error:
        _unreadable(engine, record, str(error), emit)
        return
    effects, response = engine.request(request, record.append_ms)
    engine.store.count("requests")
    _put_out(engine, record, effects, emit).reply(correlation, response)


def read_request(value: bytes) -> tuple[str, Request]:
    """Correlation id and request of `{"method", "path", "headers", "body", "correlation"}`. Raises ValueError.

    `body` is the JSON value of the request's body, absent if it had none.
    """
    read: Any = read_payload(value)
    if not isinstance(read, dict):
        raise ValueError("a request is an object")
    texts = [read.get(name) for name in ("method", "path", "correlation")]
    headers = read.get("headers") or {}
    if not all(isinstance(text, str) for text in texts) or not isinstance(headers, dict):
        raise ValueError("a request has method, path, correlation and headers")
    method, path, correlation = (str(text) for text in texts)
    named = {str(k): str(v) for k, v in headers.items()}
    return correlation, Request(method, path, named, read.get("body", ABSENT))
