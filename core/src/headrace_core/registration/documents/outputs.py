"""Effects as records (registration.md 11): which topic, key, value and headers each has.

Every emission of a record carries `id` = `registration:<partition>:<offset>:<index>`, so a repeat is recognisable.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from headrace_core.registration.effects import (
    Cleared,
    Dropped,
    Effect,
    Opened,
    Passed,
    Published,
    Registered,
    Removed,
    StatusChanged,
    TwinChanged,
    Updated,
)
from headrace_core.registration.message import write_json, write_plain
from headrace_core.registration.reasons import outcome
from headrace_core.registration.routes import ABSENT, Response
from headrace_core.stage import Emission, Headers, Record

STAGE = "registration"
MAX_DEAD_PAYLOAD = 65_536
"""Bytes of a payload that a dead letter keeps."""
NOTHING: Mapping[str, Any] = {}


class Outputs:
    """Turns the effects of one input record, applied at log time `now` (ms), into emissions, in order."""

    __slots__ = ("_emit", "_index", "_now", "_record")

    def __init__(self, record: Record, now: int, emit: Callable[[Emission], None]) -> None:
        self._record = record
        self._now = now
        self._emit = emit
        self._index = 0

    def _put(
        self, topic: str, name: bytes | None, value: bytes | None, headers: Headers = (), partition: int | None = None
    ) -> None:
        record = self._record
        ident = b"registration:%d:%d:%d" % (record.partition, record.offset, self._index)
        self._index += 1
        self._emit(Emission(topic, name, value, (*headers, ("id", ident)), partition))

    def effect(self, effect: Effect) -> None:
        """Put out one effect."""
        match effect:
            case Passed():
                self._data(effect)
            case StatusChanged():
                self._status(effect)
            case Opened(root, entity, document):
                self._put("entities", f"{root}/{entity}".encode(), write_plain(document))
            case Registered(root, entity, document, _):
                self._routed("register", root, entity, write_plain(document))
                self._put("entities", f"{root}/{entity}".encode(), write_plain(document))
            case TwinChanged(root, entity, key, value):
                self._routed("twin", root, entity, write_json({"key": key, "value": value}))
            case Updated(root, entity, changed, document):
                value = {"changed": list(changed), "entity": document}
                self._routed("update", root, entity, write_plain(value))
                self._put("entities", f"{root}/{entity}".encode(), write_plain(document))
            case Cleared(_, topic):
                self._put("outbound", topic.encode(), b"")
            case Removed(root, entity):
                self._routed("remove", root, entity, b"{}")
                self._put("entities", f"{root}/{entity}".encode(), None)
                self._put("outbound", f"{root}/{entity}".encode(), b"")
            case Published(topic, payload):
                self._put("outbound", topic.encode(), payload)
            case Dropped():
                self._dropped(effect)

    def _routed(self, kind: str, root: str, entity: str, value: bytes) -> None:
        headers = (
            ("kind", kind.encode()),
            ("receipt_time", b"%d" % self._now),
            ("entity", f"{root}/{entity}".encode()),
        )
        self._put("routed", root.encode(), value, headers, self._record.partition)

    def _data(self, effect: Passed) -> None:
        """Data keeps its receipt time, its payload is not touched."""
        message = effect.message
        headers = (
            ("kind", b"data"),
            ("receipt_time", b"%d" % message.receipt_ms),
            ("entity", f"{effect.root}/{effect.entity}".encode()),
            ("topic", message.topic.encode()),
            _channel_header(effect.channel),
        )
        self._put("routed", effect.root.encode(), message.payload, headers, self._record.partition)

    def copy(self, kind: bytes) -> None:
        """Copy a tick or flush to the same partition of `routed`."""
        headers = (("kind", kind), ("receipt_time", b"%d" % self._now))
        self._put("routed", None, self._record.value, headers, self._record.partition)

    def _dropped(self, effect: Dropped) -> None:
        """One dead letter for what is refused or lost, none for what is discarded."""
        if outcome(effect.reason) == "discarded":
            return
        message = effect.message
        own = message.ref == self._record.offset
        name = self._record.key if own else message.topic.split("/")[0].encode()
        self._dead(name, effect.reason, effect.detail, effect.root, message.topic, message.payload, message.receipt_ms)

    def unreadable(self, detail: str) -> None:
        """A dead letter for a record that is neither message, tick, flush nor readable request."""
        payload = self._record.value or b""
        self._dead(self._record.key, "invalid_payload", detail, None, None, payload, self._now)

    def _dead(
        self,
        name: bytes | None,
        reason: str,
        detail: str,
        root: str | None,
        topic: str | None,
        payload: bytes,
        receipt_ms: int,
    ) -> None:
        letter: dict[str, Any] = {"reason": reason, "detail": detail, "root": root, "topic": topic}
        letter |= dead_payload(payload)
        letter |= {"receipt_time": receipt_ms, "lost_at": self._now}
        if len(payload) > MAX_DEAD_PAYLOAD:
            letter["truncated"] = True
        self._put("dead-letter", name, write_plain(letter), (("stage", STAGE.encode()),))

    def _status(self, effect: StatusChanged) -> None:
        entity, document = f"{effect.root}/{effect.entity}", effect.document
        if document is None:
            self._put("registrations", entity.encode(), None)
            return
        error, cached = document.get("last_error", NOTHING), document.get("cached", NOTHING)
        refused = error and document["state"] == "unknown"
        status = {
            "entity": entity,
            "status": "refused" if refused else document["state"],
            "reason": error.get("reason"),
            "detail": effect.detail,
            "since": document["since"],
            "waiting_for": document.get("waiting_for"),
            "metadata": cached.get("metadata", 0),
            "telemetry": cached.get("telemetry", 0),
            "updated": self._now,
            "document": document,
        }
        self._put("registrations", entity.encode(), write_plain(status))

    def reply(self, correlation: str, response: Response) -> None:
        """Answer a request; a missing body is null."""
        body = None if response.body is ABSENT else response.body
        value = {"status": response.status, "headers": dict(response.headers), "body": body}
        self._put("replies", correlation.encode(), write_json(value))


@lru_cache(256)
def _channel_header(channel: str) -> tuple[str, bytes]:
    """There are few channels and each message has one."""
    return "channel", channel.encode()


def dead_payload(payload: bytes) -> dict[str, str]:
    """The payload of a dead letter: as text if it is UTF-8, else in base64; at most 64 KiB of it."""
    cut = payload[:MAX_DEAD_PAYLOAD]
    try:
        payload.decode()
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(cut).decode()}
    return {"payload": cut.decode(errors="ignore")}
