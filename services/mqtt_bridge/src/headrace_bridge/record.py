"""From an MQTT message to a Kafka record, or to a dead letter: pure (bridge.md 2).

The record's topic comes from the configuration alone, its key is the root, its value the payload unchanged. A message
that no record can carry (too large, a topic that is not UTF-8 or not a topic name, properties that cannot be read)
becomes a dead letter with at most the first 64 KiB of the payload. A dead letter's `id` is made of topic and payload,
so a repeat of the same message is recognisable.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace_bridge.packets import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MOST_PROPERTY_BYTES,
    RESPONSE_TOPIC,
    USER_PROPERTY,
    Publish,
)
from headrace_bridge.settings import as_filter

RESERVE_BYTES = 64 * 1024  # of max.message.bytes, for key, headers and framing
FRAMING_BYTES = 4 * 1024
TOPIC_GROWTH = 8
"""How often a topic's bytes may stand beside the payload in a record further on: as key, as header, and escaped (6) as
the source of a batch. A payload that only `raw` takes would stop the stage that cannot pass it on. It counts for topics
above 7,680 bytes.
"""
SHOWN_BYTES = 64 * 1024
SHOWN_TOPIC = 1024  # characters of a root in a dead letter
MOST_KEY_BYTES = 65_535
LETTER_BYTES = 640 * 1024
"""The largest dead letter and its batch: payload (128 KiB as JSON), topic (64 KiB of control characters, six bytes each
in JSON), root, key. It is sent until Kafka takes it, so the topic must take it.
"""
DEAD_LETTER = "dead-letter"
RAW = "raw"

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Record:
    """What goes to Kafka; `topic` is the full name."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message cannot become a record; `reason` is stable."""

    reason: str
    detail: str


@dataclass(slots=True, eq=False)
class Route:
    """What follows from a topic alone: Kafka topic, key, the header `topic`, and the most bytes of a payload.

    `headers` are those of the last message without properties, `made_for` its flags and time: the next one has the
    same as a rule.
    """

    topic: str
    key: bytes
    header: tuple[str, bytes]
    limit: int
    headers: Headers = field(default_factory=list)
    made_for: tuple[object, ...] = ()


QOS = [("qos", b"%d" % qos) for qos in range(3)]
NO_RETAIN, RETAIN = ("retain", b"0"), ("retain", b"1")
DUP = [("dup", b"0"), ("dup", b"1")]


def root_of(topic: bytes, pattern: str = "{root}/#") -> bytes:
    """The level that `{root}` stands for, if the topic has the pattern's form; else the first level (bridge.md 2)."""
    if pattern == "{root}/#":
        return topic.partition(b"/")[0]
    levels = topic.split(b"/")
    wanted = pattern.split("/")
    if "{root}" in wanted and matches(as_filter(pattern), topic):
        return levels[wanted.index("{root}")]
    return levels[0]


def matches(filter_: str, topic: bytes) -> bool:
    """Whether an MQTT topic filter (without `$share`) takes a topic; `$` topics by no wildcard at their start."""
    wanted, levels = filter_.encode().split(b"/"), topic.split(b"/")
    if topic.startswith(b"$") and wanted[0] in (b"+", b"#"):
        return False
    for place, level in enumerate(wanted):
        if level == b"#":
            return True
        if place >= len(levels) or level not in (b"+", levels[place]):
            return False
    return len(wanted) == len(levels)


@dataclass(frozen=True)
class Router:
    """Decides topic and key. `limits`: max.message.bytes by full topic name; `routes`: filter to logical topic name.

    `retain_as_published`: the broker passes on the retain flag of the publisher (MQTT 5). Without it a flag that is not
    set says nothing, and the record has no header `retain` (registration.md 9).
    """

    prefix: str
    limits: Mapping[str, int]
    root_pattern: str = "{root}/#"
    routes: Mapping[str, str] = field(default_factory=dict)
    retain_as_published: bool = True

    def topic_of(self, topic: bytes) -> str:
        """Full name of the Kafka topic: the first route that matches, else `raw`."""
        for filter_, name in self.routes.items():
            if matches(filter_, topic):
                return self.prefix + name
        return self.prefix + RAW

    def route(self, topic: bytes) -> Route | None:
        """Where messages of a topic go; None if it is no topic of theirs: no topic name, not UTF-8, or a `$` topic."""
        if topic.startswith(b"$") or topic_refusal(topic):
            return None
        name = self.topic_of(topic)
        limit = self.limits[name] - max(RESERVE_BYTES, TOPIC_GROWTH * len(topic) + FRAMING_BYTES)
        return Route(name, root_of(topic, self.root_pattern), ("topic", topic), limit)

    def refusal(self, message: Publish) -> Refusal | None:
        """Why it cannot be a record; None if it can."""
        if refused := topic_refusal(message.topic):
            return refused
        if message.malformed_properties:
            return Refusal(
                "invalid_properties", f"the properties cannot be read, or have more than {MOST_PROPERTY_BYTES} bytes"
            )
        size = len(message.payload) + message.missing
        route = self.route(message.topic)
        if route is not None and size > route.limit:
            return Refusal("too_large", f"payload of {size} bytes, at most {max(route.limit, 0)}")
        if message.missing:  # the topic would take it, but its end was dropped unread: half a payload is none
            return Refusal("too_large", f"payload of {size} bytes, more than the bridge holds")
        return None

    def record(self, message: Publish, received_ms: int) -> Record:
        """The record of a message that is not refused."""
        route = self.route(message.topic)
        assert route is not None
        headers = self.headers(message, route, ("received", b"%d" % received_ms))
        return Record(route.topic, route.key, message.payload, headers)

    def headers(self, message: Publish, route: Route, received: tuple[str, bytes]) -> Headers:
        """The record's headers; `received` is the one of this name."""
        if message.retain:
            headers = [route.header, QOS[message.qos], RETAIN, DUP[message.dup], received]
        elif self.retain_as_published:
            headers = [route.header, QOS[message.qos], NO_RETAIN, DUP[message.dup], received]
        else:
            headers = [route.header, QOS[message.qos], DUP[message.dup], received]
        if message.properties:
            headers += property_headers(message)
        return headers

    def dead_letter(self, message: Publish, refusal: Refusal, received_ms: int) -> Record:
        """The dead letter, never larger than a Kafka topic takes by default."""
        topic = message.topic.decode(errors="backslashreplace")
        root = root_of(message.topic, self.root_pattern)
        document: dict[str, object] = {
            "reason": refusal.reason,
            "detail": refusal.detail,
            "root": root.decode(errors="backslashreplace")[:SHOWN_TOPIC],
            "topic": topic[: 64 * SHOWN_TOPIC],
            "receipt_time": received_ms,
            "lost_at": received_ms,
            **shown(message.payload, message.missing),
        }
        identity = hashlib.sha256(len(message.topic).to_bytes(4, "big") + message.topic + message.payload)
        headers: Headers = [("id", b"bridge:" + identity.hexdigest().encode()), ("stage", b"bridge")]
        return Record(self.prefix + DEAD_LETTER, root, msgspec.json.encode(document), headers)


def topic_refusal(topic: bytes) -> Refusal | None:
    """Why this is no topic name; None if it is one."""
    if not topic or b"+" in topic or b"#" in topic:
        return Refusal("invalid_topic", "not a topic name")
    try:
        topic.decode()
    except UnicodeDecodeError as error:
        return Refusal("invalid_topic", f"not UTF-8: {error.reason} at byte {error.start}")
    return None


def property_headers(message: Publish) -> Headers:
    """MQTT 5 properties as headers (bridge.md 2); a name that is no text is left out."""
    names = {CONTENT_TYPE: "content-type", RESPONSE_TOPIC: "response-topic", CORRELATION_DATA: "correlation-data"}
    headers: Headers = []
    for kind, value in message.properties:
        if isinstance(value, bytes) and kind in names:
            headers.append((names[kind], value))
        elif kind == USER_PROPERTY and isinstance(value, tuple):
            headers += _user_property(*value)
    return headers


def _user_property(name: bytes, value: bytes) -> Headers:
    if name == b"traceparent":
        return [("traceparent", value)]
    try:
        decoded = name.decode()
    except UnicodeDecodeError:
        return []
    return [] if "\0" in decoded else [(f"mqtt-{decoded}", value)]


def shown(payload: bytes, missing: int = 0) -> dict[str, object]:
    """The payload's members of a dead letter: text if it is text, else base64; cut at 64 KiB."""
    cut = payload[:SHOWN_BYTES]
    more: dict[str, object] = {"truncated": True} if missing or len(payload) > SHOWN_BYTES else {}
    for end in range(len(cut), max(len(cut) - 4, -1), -1) if more else (len(cut),):
        try:
            text = cut[:end].decode()
        except UnicodeDecodeError:
            continue
        if len(msgspec.json.encode(text)) <= 2 * SHOWN_BYTES:
            return {"payload": text, **more}
    return {"payload_base64": base64.b64encode(cut).decode(), **more}
