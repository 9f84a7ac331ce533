"""Messages and what a registration payload says (registration.md 4).

A registration is an object; members with the value null count as absent. Its checks run in the order of section 4 and
the first failure counts. What is left is a `Definition`: the members as given, ids filled up, twin data in order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace_core.nesting import is_too_deep
from headrace_core.registration import topics
from headrace_core.registration.config import MAIN, RegistrationConfig
from headrace_core.registration.reasons import Refusal

TYPES = ("device", "child-device", "service")
MEMBERS = ("@type", "@id", "@parent", "@health")
KNOWN = frozenset({*MEMBERS, "@topic-id"})


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An MQTT message: `receipt_ms` on the log's clock, `ref` = offset in the log (names it in outputs)."""

    topic: str
    payload: bytes
    retained: bool
    receipt_ms: int
    ref: int

    @property
    def size(self) -> int:
        """Bytes of topic and payload (section 2)."""
        topic = self.topic
        return (len(topic) if topic.isascii() else len(topic.encode("utf-8", "surrogatepass"))) + len(self.payload)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


_read = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_object).decode


def read_json(payload: bytes | str) -> Any:
    """The JSON value of `payload`. Raises ValueError for anything that is not JSON in UTF-8.

    An object with a key twice is none either: which of its values counts would be the reader's guess, so two readers
    of one message could disagree (RFC 8259, section 4; the Spark writer has the same rule).
    """
    try:
        value = _read(payload.decode() if isinstance(payload, bytes) else payload)
        write_json(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def read_payload(payload: bytes) -> Any:
    """`read_json` of what comes from outside. Raises ValueError, too, if it is nested deeper than `DEEPEST`."""
    text = payload.decode()
    if is_too_deep(text):
        raise ValueError("nested too deeply")
    return read_json(text)


_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def write_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, members in order. Raises ValueError for what no JSON text in UTF-8 can say."""
    return _compact(value).encode()


write_plain = msgspec.json.Encoder().encode
"""`write_json` for values without fractions: the same bytes (only floats are written in another way), sooner."""


def same(left: Any, right: Any) -> bool:
    """Equal as JSON values: order of members does not count, true is not 1, 1 is 1.0."""
    pairs = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs.extend((a[k], b[k]) for k in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif isinstance(a, bool) != isinstance(b, bool) or a != b:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Definition:
    """A registration that passed the checks of its own members; None = absent."""

    type: str
    id: str | None = None
    parent: str | None = None
    health: str | None = None
    twin: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Unknown members that start with `@` (section 4); only counted."""

    def content(self) -> dict[str, Any]:
        """The accepted content (section 8.2), as an object."""
        named = zip(MEMBERS, (self.type, self.id, self.parent, self.health), strict=True)
        return {name: value for name, value in named if value is not None} | dict(self.twin)

    def resolved_parent(self, entity: str) -> str | None:
        """The parent with the defaults of section 4."""
        if self.parent is not None or self.type == "device":
            return self.parent
        if self.type == "service" and topics.default_type(entity) == "service":
            return topics.device_of(entity)
        return MAIN


def parse_definition(config: RegistrationConfig, entity: str, payload: bytes) -> Definition:
    """Read a registration message of `entity`. Raises Refusal."""
    try:
        value = read_payload(payload)
    except ValueError as error:
        raise Refusal("invalid_payload", str(error)) from error
    return read_definition(config, entity, value)


def read_definition(config: RegistrationConfig, entity: str, value: Any) -> Definition:
    """Check the members of a registration in the order of section 4. Raises Refusal."""
    if not isinstance(value, dict):
        raise Refusal("invalid_payload", "not an object")
    given = {k: v for k, v in value.items() if v is not None}
    if config.id_alias and "@id" not in given and isinstance(given.get("id"), str):
        given["@id"] = given.pop("id")
    definition = Definition(
        type=_read_type(config, entity, given),
        id=_read_id(given),
        parent=read_reference(given, "@parent"),
        health=read_reference(given, "@health"),
        twin={k: v for k, v in given.items() if not k.startswith("@")},
        ignored=tuple(k for k in given if k.startswith("@") and k not in KNOWN),
    )
    for key in definition.twin:
        if not key or "/" in key:
            raise Refusal("invalid_twin_key", f"{key!r} cannot be a twin key")
    if definition.parent is not None and (definition.type == "device" or definition.parent == entity):
        raise Refusal("invalid_parent", "a device has no parent, and nobody is its own")
    return definition


def _read_type(config: RegistrationConfig, entity: str, given: Mapping[str, Any]) -> str:
    kind = given.get("@type")
    if kind is None and config.infer_type:
        kind = topics.default_type(entity)
    if kind is None:
        raise Refusal("missing_type", "@type is required")
    if kind not in TYPES:
        raise Refusal("invalid_type", f"@type is one of {', '.join(TYPES)}")
    assert isinstance(kind, str)
    return kind


def _read_id(given: Mapping[str, Any]) -> str | None:
    value = given.get("@id")
    if value is None:
        return None
    if not isinstance(value, str) or not value or any(c in value for c in "/+#"):
        raise Refusal("invalid_id", "@id is a string, not empty, without /, + and #")
    return value


def read_reference(given: Mapping[str, Any], member: str) -> str | None:
    """The topic id in `member`, or None. Raises Refusal `invalid_topic_id`."""
    value = given.get(member)
    if value is None:
        return None
    if not isinstance(value, str):
        raise Refusal("invalid_topic_id", f"{member} is a topic id")
    return topics.topic_id(value)
