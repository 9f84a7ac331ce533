"""Topics (registration.md 3): `<root>/<s1>/<s2>/<s3>/<s4>/<channel>`.

A topic id has exactly four segments; missing ones are empty. If nothing or only empty segments follow them, the message
is a registration; else they are one of the channels below, or the topic is refused.
"""

from __future__ import annotations

from collections.abc import Container
from enum import Enum
from functools import lru_cache

from msgspec import Struct

from headrace_core.registration.config import MAIN
from headrace_core.registration.reasons import Refusal


class Kind(Enum):
    """What a message is to its entity."""

    REGISTRATION = "registration"
    TELEMETRY = "telemetry"
    METADATA = "metadata"
    SIGNAL = "signal"


class Parsed(Struct, frozen=True, gc=False):
    """A topic taken apart. `registers`: its channel registers an unknown entity by itself (section 7)."""

    root: str
    topic_id: str
    kind: Kind
    channel: str = ""
    registers: bool = False


def topic_id(text: str) -> str:
    """The topic id that `text` names, filled up to four segments. Raises Refusal `invalid_topic_id`."""
    return _topic_id(text.split("/"))


def _topic_id(segments: list[str]) -> str:
    if len(segments) > 4:
        raise Refusal("invalid_topic_id", "more than four segments")
    text = "/".join(segments)
    if not text.strip("/"):
        raise Refusal("invalid_topic_id", "only empty segments")
    if "+" in text or "#" in text or "\0" in text:
        raise Refusal("invalid_topic_id", "contains +, # or NUL")
    return text + "/" * (4 - len(segments))


def parse(topic: str, roots: Container[str]) -> Parsed:
    """Take an MQTT topic apart; `roots` are the accepted ones. Raises Refusal."""
    segments = topic.split("/", 5)
    root = segments[0]
    if root not in roots or len(segments) < 2:
        raise Refusal("invalid_topic", "wrong root or too short")
    entity = _topic_id(segments[1:5])
    rest = segments[5] if len(segments) == 6 else ""
    if not rest.strip("/"):
        return Parsed(root, entity, Kind.REGISTRATION)
    kind, registers = _channel(rest)
    return Parsed(root, entity, kind, rest, registers)


def assumed_retained(topic: str) -> bool:
    """Whether a message whose retain flag nobody could see counts as retained: all metadata channels and alarms do
    (section 9)."""
    rest = "/".join(topic.split("/")[5:])
    try:
        return rest.startswith("a/") or _channel(rest)[0] is Kind.METADATA
    except Refusal:
        return False


@lru_cache(256)
def _channel(channel: str) -> tuple[Kind, bool]:
    """Class of a channel and whether it registers automatically: the table of section 3. Raises Refusal."""
    match channel.split("/"):
        case ["m" | "e" | "a", _]:
            return Kind.TELEMETRY, True
        case ["m" | "e" | "a", _, "meta"]:
            return Kind.METADATA, True
        case ["twin", key]:
            check_twin_key(key)
            return Kind.METADATA, True
        case ["cmd", op] if op:
            return Kind.METADATA, True
        case ["cmd", op, call] if op and call:
            return Kind.METADATA, False
        case ["status", component] if component:
            return Kind.METADATA, True
        case ["config"]:
            return Kind.METADATA, True
        case ["signal", name] if name:
            return Kind.SIGNAL, False
    raise Refusal("unknown_channel", channel)


def check_twin_key(key: str) -> None:
    """Raises Refusal `invalid_twin_key` unless `key` may name twin data of a topic or URL."""
    if not key or key.startswith("@") or "/" in key:
        raise Refusal("invalid_twin_key", f"{key!r} cannot be a twin key")


@lru_cache(1024)
def default_type(entity: str) -> str | None:
    """The type that a topic of the default scheme suggests (section 4), or None for a custom topic id."""
    if entity == MAIN:
        return "device"
    match entity.split("/"):
        case ["device", name, "", ""] if name:
            return "child-device"
        case ["device", name, "service", service] if name and service:
            return "service"
    return None


def device_of(entity: str) -> str:
    """The device in the topic of a default-scheme entity: itself, or for a service the device it is on."""
    return "/".join(entity.split("/")[:2]) + "//"


def default_id(main_id: str, entity: str) -> str:
    """External id of an entity that names none (section 4)."""
    return f"{main_id}:{entity.rstrip('/').replace('/', ':')}"


def last_segment(entity: str) -> str:
    """The last segment that is not empty: the name of an automatic registration (section 7)."""
    return next(s for s in reversed(entity.split("/")) if s)
