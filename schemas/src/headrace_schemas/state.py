"""The durable state of each stage, family by family: what a changelog's keys and values are (streams.md 3).

`decode` reads one item for people and programs; `docs/state.md` is written from the same table. Families that are
derived from these are not in a changelog: `Stage.derive` writes them anew.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from headrace_schemas import layout as at
from headrace_schemas.layout import Family, Member, Part, Record, Unfit

TEXT, WHOLE, YES_NO, BYTES, NONE, LIST = str, int, bool, bytes, type(None), list


def _text(name: str, words: str) -> Member:
    return Member(name, words, (TEXT,))


def _whole(name: str, words: str) -> Member:
    return Member(name, words, (WHOLE,))


def _optional(name: str, words: str, kind: type = TEXT) -> Member:
    return Member(name, f"{words}, or null", (kind, NONE))


def _array(name: str, words: str, record: Record) -> Member:
    return Member(name, words, (LIST,), record)


MESSAGE = Record(
    "message",
    (
        _text("topic", "MQTT topic"),
        Member("payload", "bytes", (BYTES,)),
        Member("retained", "true or false", (YES_NO,)),
        _whole("receipt_ms", "receipt time"),
        _whole("ref", "offset in `raw`"),
    ),
)
ENTITY = Record(
    "entity",
    (
        _text("type", "`@type`"),
        _text("id", "external id"),
        _optional("parent", "topic id"),
        _optional("health", "topic id"),
        Member("automatic", "registered automatically", (YES_NO,)),
        _whole("since", "clock at the registration"),
        Member("content", "last accepted content, JSON", (BYTES,)),
        Member("retained", "has had a retained data topic", (YES_NO,)),
    ),
)
PENDING = Record(
    "pending",
    (
        _whole("since", "receipt of the first thing kept"),
        _whole("seq", "place among those of the same age"),
        _whole("telemetry", "cached messages"),
        _whole("telemetry_bytes", "their bytes"),
        _whole("metadata", "cached messages"),
        _whole("metadata_bytes", "their bytes"),
        _whole("suitable", "cached messages whose channel registers automatically"),
        _whole("waiting_bytes", "size of the waiting registration; -1: none"),
    ),
)
WAITING = Record(
    "waiting",
    (
        _whole("order", "place in the queue of the parent"),
        _text("parent", "topic id it waits for"),
        _text("type", "`@type`"),
        _array("message", "the registration", MESSAGE),
    ),
)
CACHED = Record(
    "cached",
    (
        _text("channel", "what follows the topic id"),
        Member("suitable", "would register automatically", (YES_NO,)),
        _array("message", "the message", MESSAGE),
    ),
)
IDLE = Record(
    "idle",
    (
        _text("state", "`unknown`, `expired` or `removed`"),
        _optional("since", "when it came into this state", WHOLE),
        _whole("at", "when retention begins"),
        _whole("seq", "place among those of the same time"),
    ),
)
LAST_ERROR = Record(
    "last_error",
    (_text("reason", "of registration.md 11"), _whole("receipt_ms", "receipt time"), _text("detail", "for people")),
)
MOVED = Record("moved", (Member("path", "topic ids from the top to itself, before the change", (LIST,)),))
CLOCK = Record("clock", (_whole("now_ms", "clock"), _whole("batches", "numbers given out")))
MEMBER = Record(
    "member",
    (
        _text("type", "measurement's type"),
        _whole("event_ms", "event time"),
        _whole("received_ms", "clock when it was taken"),
        Member("value", "JSON value, encoded", (BYTES,)),
    ),
    many=True,
)
OPEN = Record(
    "open",
    (
        _text("source", "root/topic-id"),
        _whole("number", "of the batch"),
        _whole("from_ms", "window, from"),
        _whole("until_ms", "window, before"),
        _whole("opened_ms", "clock at the opening"),
        _whole("deadline_ms", "closed at this clock"),
        _text("type", "of the opening message"),
        _whole("max_members", "setting at the opening"),
        _whole("max_bytes", "setting at the opening"),
        _whole("horizon", "setting at the opening"),
        _whole("size", "bytes of the members' values"),
        _whole("pages", "full pages of earlier members"),
        _array("last", "members after these, in order of arrival", MEMBER),
    ),
)
PAGE = Record("page", (_text("source", "root/topic-id"), _array("members", "16 of them", MEMBER)))
IDENTITY = Record(
    "identity", (_text("source", "root/topic-id"), _whole("event_ms", "event time"), _text("type", "type")), many=True
)
TIMELINE_MESSAGE = Record(
    "timeline_message",
    (
        _whole("timestamp", "where it stands"),
        _text("group", "owner"),
        _whole("bucket", "of its id"),
        _whole("created_at", "NOW at its creation"),
        _whole("version", "1 at its creation, and 1 more at each change"),
        _optional("lock", "consumer of the last lease"),
        _whole("lease_version", "version of the present grant; 0: none"),
        _whole("due_at", "timestamp before that grant"),
        _whole("deliveries", "grants so far"),
        _optional("headers", "object of texts", dict),
        _whole("parked_at", "NOW at its parking; -1: not parked"),
        _whole("parking", "number of its parking"),
        _whole("deleted_at", "NOW at its deletion; -1: not deleted"),
        _optional("deleted_by", "group or consumer"),
        Member("completed", "deleted by the holder", (YES_NO,)),
        _optional("source", "partition and offset of a time buffer's record", LIST),
    ),
)
REMEMBERED = Record(
    "remembered",
    (
        _whole("at_ms", "NOW of the first request"),
        Member("fingerprint", "of operation and arguments, 16 bytes", (BYTES,)),
        Member("answer", "MessagePack", (BYTES,)),
        _whole("waiter", "number of the poll that still waits; 0: none"),
    ),
)
WAITER = Record(
    "waiter",
    (
        _text("consumer", "who asks"),
        _whole("lease_ms", "from the grant on"),
        _whole("limit", "most messages"),
        _whole("end_ms", "NOW at which it ends"),
        _optional("buckets", "only these", LIST),
        _optional("request_id", "of the poll"),
        Member("reply", "where it is answered, MessagePack; empty: nowhere", (BYTES,)),
    ),
)
TIMELINE_CLOCK = Record(
    "timeline_clock",
    (
        _whole("now_ms", "NOW"),
        Member("degraded", "clocks are too far apart", (YES_NO,)),
        Member("frozen", "every change is refused", (YES_NO,)),
        Member("buffers", "has had records of a time buffer", (YES_NO,)),
        _whole("sequence", "numbers given out"),
        _whole("waiting", "waiting polls"),
        _whole("buffered", "records of a time buffer"),
        _whole("live", "messages that are neither parked nor deleted"),
        _whole("parked", "parked messages"),
        _whole("tombstones", "deleted ones that are remembered"),
        _whole("repairs", "index keys without a message that were removed"),
    ),
)
SUBSCRIPTION = Record("subscription", (_text("token", "of the consumer"), _whole("at_ms", "NOW of its last sign")))

ROOT, TOPIC_ID = Part("root", at.ENDED), Part("topic_id", at.ENDED)
NAME = Part("name", at.REST)

STATE: dict[str, dict[str, Family]] = {
    "registration": {
        "c": Family("number", "clock, sequence", (NAME,), at.SIGNED),
        "n": Family("counter", "counters of the stage", (NAME,), at.SIGNED),
        "t": Family("tally", "counters of a root", (ROOT, NAME), at.SIGNED),
        "E": Family("entity", "entities", (ROOT, TOPIC_ID), at.packed(ENTITY)),
        "T": Family("twin", "twin values", (ROOT, TOPIC_ID, NAME), at.JSON),
        "G": Family("config", "published configurations", (ROOT, TOPIC_ID), at.JSON),
        "V": Family(
            "retained", "topics with retained data", (ROOT, TOPIC_ID, Part("topic", at.REST)), at.NOTHING
        ),
        "P": Family("pending", "pending entries", (ROOT, TOPIC_ID), at.packed(PENDING)),
        "W": Family("waiting", "waiting registrations", (ROOT, TOPIC_ID), at.packed(WAITING), (MESSAGE,)),
        "M": Family(
            "cached", "cached messages", (ROOT, TOPIC_ID, Part("class", at.CLASS), Part("seq", at.NUMBER)),
            at.packed(CACHED), (MESSAGE,),
        ),
        "Z": Family("idle", "statuses of other ids", (ROOT, TOPIC_ID), at.packed(IDLE)),
        "L": Family("last_error", "last errors", (ROOT, TOPIC_ID), at.packed(LAST_ERROR)),
        "R": Family(
            "spelled", "topics of registrations that are spelled otherwise",
            (ROOT, TOPIC_ID, Part("topic", at.REST)), at.NOTHING,
        ),
        "H": Family(
            "moved", "changed parents, for listings", (ROOT, Part("seq", at.NUMBER)), at.packed(MOVED)
        ),
    },
    "batching": {
        "c": Family("clock", "clock and numbers given out", (), at.packed(CLOCK)),
        "b": Family(
            "open", "open batches and their last members",
            (Part("number", at.RISING),), at.packed(OPEN), (MEMBER,),
        ),
        "m": Family(
            "page", "earlier members", (Part("number", at.RISING), Part("page", at.PAGE)), at.packed(PAGE), (MEMBER,)
        ),
        "x": Family(
            "closed", "identities of closed batches", (Part("last_ms", at.RISING), Part("number", at.RISING)),
            at.packed(IDENTITY),
        ),
        "r": Family("seen", "highest id seen of each input", (Part("input", at.REST),), at.PLACE),
        "n": Family("counter", "counters", (NAME,), at.COUNT),
    },
    "timeline": {
        "m": Family(
            "message", "messages, and what is remembered of deleted ones", (Part("id", at.REST),),
            at.packed(TIMELINE_MESSAGE),
        ),
        "b": Family("body", "bodies", (Part("id", at.REST),), at.PLAIN),
        "r": Family(
            "request", "requests and their answers; of polls without an id",
            (Part("id", at.ENDED), Part("request_id", at.REST)), at.packed(REMEMBERED),
        ),
        "w": Family("waiter", "waiting polls", (Part("number", at.NUMBER),), at.packed(WAITER)),
        "sclock": Family("clock", "clock, numbers given out, and gauges", (), at.packed(TIMELINE_CLOCK)),
        "ssettings": Family("settings", "settings, if they were ever configured", (), at.OBJECT),
        "ssub": Family("subscription", "subscriptions", (Part("consumer", at.REST),), at.packed(SUBSCRIPTION)),
        "n": Family("counter", "counters", (NAME,), at.COUNT),
    },
    "timeline.in": {"n": Family("counter", "counters", (NAME,), at.COUNT)},
}  # fmt: skip
"""Stage, then the bytes that its key begins with; of those that fit, the most."""
TITLES = {"timeline": "timeline.<name>", "timeline.in": "timeline.<name>.in"}
"""Stages of which there are several."""


def described_as(stage: str) -> str:
    """The name in STATE for a stage: those of one timeline are as those of any."""
    first, *rest = stage.split(".")
    if first == "timeline" and rest:
        return ".".join((first, *rest[1:]))
    return stage


def family_of(stage: str, key: bytes) -> tuple[Family, int] | None:
    """The family of a key, and how many of its bytes name the family."""
    found = STATE.get(described_as(stage), {})
    fitting = [prefix for prefix in found if key.startswith(prefix.encode())]
    longest = max(fitting, key=len, default=None)
    return None if longest is None else (found[longest], len(longest))


@dataclass(frozen=True, slots=True)
class Item:
    """One item, read. `family` is its name; of one that cannot be read `raw` the letter, and `problem` says why."""

    family: str
    key: Any
    value: Any
    problem: str | None = None


def decode(stage: str, key: bytes, value: bytes) -> Item:
    """Read one item of a stage's state; bytes in it as text, or as `{"base64": ...}` where they are none.

    An item that is not as its family says, or of a stage or family that is not described, keeps key and value as they
    are, and says so in `problem`.
    """
    found = family_of(stage, key)
    if found is None:
        return Item(chr(key[0]), shown(key), shown(value), "no such family is described")
    family, size = found
    try:
        return Item(family.name, at.read_key(family, key, size), shown(family.value.read(value)))
    except Unfit as error:
        return Item(family.name, shown(key), shown(value), str(error))


def shown(value: Any) -> Any:
    """The same with bytes as text where they are text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return value
