"""The topics of headrace (architecture.md, Topics): what a record of each holds and which schema its value obeys.

A record is of the message whose header `kind`, key and value fit (`records.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from headrace_schemas import headers as h
from headrace_schemas.headers import Headers, Schema
from headrace_schemas.state import STATE


class Value(StrEnum):
    """What the value of a record is."""

    JSON = "document"
    BYTES = "bytes"
    EMPTY = "empty"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Message:
    """One kind of record. `document` names the schema of a JSON value; `optional` headers may be missing; with
    `carries` there may be others, which are handed on. `told_by`: a header that no other record of the topic has."""

    name: str
    summary: str
    value: Value
    headers: Headers
    key: Schema
    document: str | None = None
    optional: Headers = field(default_factory=dict)
    user_properties: bool = False
    carries: bool = False
    told_by: str | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic by its logical name, without prefix. `retention` is Kafka's `cleanup.policy`."""

    name: str
    summary: str
    key: str
    flow: str
    retention: str
    messages: tuple[Message, ...]


def _json(name: str, summary: str, document: str, headers: Headers, key: Schema) -> Message:
    return Message(name, summary, Value.JSON, headers, key, document)


def _routed(name: str, summary: str) -> Message:
    headers = h.kind(name) | h.RECEIPT | h.id_of("registration") | h.ENTITY
    return _json(name, summary, f"routed-{name}", headers, h.ROOT_KEY)


def _copied(name: str, summary: str) -> Message:
    headers = h.kind(name) | h.RECEIPT | h.id_of("registration")
    return Message(name, summary, Value.EMPTY, headers, h.NO_KEY)


def _changelog(stage: str, summary: str) -> Topic:
    return Topic(
        f"{stage}.changelog",
        f"Every change of the durable state of {stage}: {summary}. A chunk's changes and its marker are one record "
        "batch (streams.md 2.4). Every byte: docs/state.md.",
        "key of the state",
        "runner -> runner",
        "compact",
        (
            Message("item", "a value of the state", Value.BYTES, h.SOURCE, h.STATE_KEY),
            Message("gone", "a key that is no more", Value.NONE, h.SOURCE, h.STATE_KEY),
            _json("marker", "how far the chunk goes", "changelog-marker", h.SOURCE, h.BINARY | {"const": MARKER_KEY}),
        ),
    )


MARKER_KEY = "\xff\xffmarker"
"""Key of the marker, one character a byte."""

FAMILIES = {stage: {letter: family.summary for letter, family in families.items()} for stage, families in STATE.items()}
"""First bytes of the keys in a stage's changelog."""


def marker_words() -> str:
    """What the marker is, for the page of the state."""
    return (
        "The marker has the key `ff ff` and `marker` (the same in every partition) and a value of JSON, schema "
        '`changelog-marker`:\n`{"source": 4711, "clock": 1760000000000, "epoch": 3}` says that everything up to '
        "offset 4711 of the input is applied."
    )


def _families(stage: str) -> str:
    return ", ".join(f"`{family}` {words}" for family, words in FAMILIES[stage].items())


TOPICS = (
    Topic(
        "raw",
        "What devices published, unchanged. Stamped by the broker (LogAppendTime).",
        "root",
        "bridge, API, stage owner -> registration",
        "delete",
        (
            Message("mqtt", "an MQTT message", Value.BYTES, h.MQTT, h.FIRST_LEVEL_KEY, None, h.MQTT_OPTIONAL, True),
            Message("tick", "written by the owner of an idle partition", Value.EMPTY, h.kind("tick"), h.NO_KEY),
            Message("flush", "asks to close all open batches", Value.EMPTY, h.kind("flush"), h.NO_KEY),
            _json("request", "an HTTP write, answered in `replies`", "request", h.kind("request"), h.ROOT_OR_NO_KEY),
        ),
    ),
    Topic(
        "routed",
        "Registrations before data, parents before children, in one order for each root.",
        "root",
        "registration -> batching, anyone",
        "delete",
        (
            _routed("register", "an entity was registered"),
            _routed("twin", "a twin value changed; null: removed"),
            _routed("update", "parent or health service changed"),
            Message(
                "data",
                "the payload of a registered entity, unchanged",
                Value.BYTES,
                h.kind("data") | h.RECEIPT | h.id_of("registration") | h.ENTITY | h.DATA,
                h.ROOT_KEY,
            ),
            _routed("remove", "an entity was removed"),
            _copied("tick", "moves the clock"),
            _copied("flush", "closes all open batches"),
        ),
    ),
    Topic(
        "batches",
        "Measurements of one source that were generated close together.",
        "root/topic-id",
        "batching -> Spark, anyone",
        "delete",
        (_json("batch", "an event-time batch", "batch", h.id_of("batching"), h.ENTITY_KEY),),
    ),
    Topic(
        "entities",
        "The definition of every registered entity.",
        "root/topic-id",
        "registration -> API, anyone",
        "compact",
        (
            _json("entity", "an entity document", "entity", h.id_of("registration"), h.ENTITY_KEY),
            Message("gone", "the entity was removed", Value.NONE, h.id_of("registration"), h.ENTITY_KEY),
        ),
    ),
    Topic(
        "registrations",
        "The registration status of every entity that is known.",
        "root/topic-id",
        "registration -> API, anyone",
        "compact",
        (
            _json("status", "a status", "registration", h.id_of("registration"), h.ENTITY_KEY),
            Message("gone", "nothing is known any more", Value.NONE, h.id_of("registration"), h.ENTITY_KEY),
        ),
    ),
    Topic(
        "outbound",
        "What the bridge publishes over MQTT, retained.",
        "MQTT topic",
        "registration -> bridge",
        "delete",
        (
            Message("publish", "an MQTT payload", Value.BYTES, h.id_of("registration"), h.TOPIC_KEY),
            Message("clear", "the retained message goes", Value.EMPTY, h.id_of("registration"), h.TOPIC_KEY),
        ),
    ),
    Topic(
        "replies",
        "Answers to requests, written when what they say is durable.",
        "correlation id",
        "stages -> API",
        "delete",
        (
            _json("reply", "an HTTP answer", "reply", h.id_of("registration"), h.CORRELATION_KEY),
            Message(
                "timeline-reply",
                "the answer to a command of a timeline, in the partition that it named; after a restart maybe once "
                "more",
                Value.JSON,
                h.EVENT | h.REPLY,
                h.CORRELATION_KEY,
                "timeline-reply",
                told_by="tl-reply-to",
            ),
        ),
    ),
    Topic(
        "dead-letter",
        "Every message that was refused or lost, with its reason.",
        "original key",
        "all -> people",
        "delete",
        (_json("dead-letter", "reason, detail, source and payload", "dead-letter", h.DEAD_LETTER, h.ANY_KEY),),
    ),
    Topic(
        "timeline.<name>.commands",
        "What happens to the messages of a timeline, in order. Stamped by the broker (LogAppendTime), kept for 7 days.",
        "id of the message",
        "API, producers, source of a time buffer, owner -> timeline",
        "delete",
        (
            Message("tick", "written by the owner of an idle partition", Value.EMPTY, h.kind("tick"), h.NO_KEY),
            Message(
                "command",
                "an operation, or a message for later; the value is its body",
                Value.BYTES,
                {},
                h.MESSAGE_KEY,
                None,
                h.COMMAND,
                carries=True,
            ),
            Message(
                "cancel", "the owner takes a message back", Value.NONE, {}, h.MESSAGE_KEY, None, h.COMMAND, carries=True
            ),
        ),
    ),
    Topic(
        "timeline.<name>.events",
        "Refusals of commands without an address for the reply; with the setting `events` a record for each applied "
        "change.",
        "id of the message",
        "timeline -> people",
        "delete",
        (
            Message("refused", "JSON: operation, code, detail", Value.BYTES, h.EVENT, h.MESSAGE_KEY),
            Message(
                "changed",
                "a message, or the timeline, after a change",
                Value.JSON,
                h.EVENT | h.CHANGED,
                h.MESSAGE_KEY,
                "timeline-event",
                told_by="event",
            ),
        ),
    ),
    Topic(
        "timeline.<name>.parked",
        "Copies of messages that were handed out too often, and of commands in a wrong partition. Kept for 30 days.",
        "id of the message",
        "timeline -> people",
        "delete",
        (Message("parked", "the body", Value.BYTES, h.EVENT | h.PARKED, h.MESSAGE_KEY, carries=True),),
    ),
    _changelog("registration", _families("registration")),
    _changelog("batching", _families("batching")),
    _changelog("timeline.<name>", _families("timeline")),
    _changelog("timeline.<name>.in", _families("timeline.in")),
)


_BY_NAME = {found.name: found for found in TOPICS}


def topic(name: str) -> Topic:
    """The topic with this logical name. Raises KeyError."""
    return _BY_NAME[name]
