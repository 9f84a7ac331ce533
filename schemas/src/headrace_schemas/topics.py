"""The topics of headrace (architecture.md, Topics): what a record of each holds and which schema its value obeys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One kind of record. `document` names the schema of its value; None: bytes that headrace does not judge."""

    name: str
    summary: str
    document: str | None
    headers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic by its logical name, without prefix. `retention` is Kafka's `cleanup.policy`."""

    name: str
    summary: str
    key: str
    flow: str
    retention: str
    messages: tuple[Message, ...]


TICK = Message("tick", "moves the clock; no payload", None, ("kind", "receipt_time"))
FLUSH = Message("flush", "closes all open batches; no payload", None, ("kind", "receipt_time"))
ROUTED = ("kind", "receipt_time", "id", "entity")

TOPICS = (
    Topic(
        "raw",
        "What devices published, unchanged. Stamped by the broker (LogAppendTime).",
        "root",
        "bridge, API, stage owner -> registration",
        "delete",
        (
            Message("mqtt", "an MQTT message", None, ("topic", "qos", "retain", "dup", "received")),
            Message("tick", "written by the owner of an idle partition; no payload", None, ("kind",)),
            Message("flush", "asks to close all open batches; no payload", None, ("kind",)),
            Message("request", "an HTTP write, answered in `replies`", None, ("kind",)),
        ),
    ),
    Topic(
        "routed",
        "Registrations before data, parents before children, in one order for each root.",
        "root",
        "registration -> batching, anyone",
        "delete",
        (
            Message("register", "an entity was registered", "routed-register", ROUTED),
            Message("twin", "a twin value changed; null: removed", "routed-twin", ROUTED),
            Message("update", "parent or health service changed", "routed-update", ROUTED),
            Message("data", "the payload of a registered entity, unchanged", None, (*ROUTED, "topic", "channel")),
            Message("remove", "an entity was removed", "routed-remove", ROUTED),
            TICK,
            FLUSH,
        ),
    ),
    Topic(
        "batches",
        "Measurements of one source that were generated close together.",
        "root/topic-id",
        "batching -> Spark, anyone",
        "delete",
        (Message("batch", "an event-time batch", "batch", ("id",)),),
    ),
    Topic(
        "entities",
        "The definition of every registered entity; tombstone on removal.",
        "root/topic-id",
        "registration -> API, anyone",
        "compact",
        (Message("entity", "an entity document", "entity", ("id",)),),
    ),
    Topic(
        "registrations",
        "The registration status of every entity that is known.",
        "root/topic-id",
        "registration -> API, anyone",
        "compact",
        (Message("status", "a status document (registration.md 13)", None, ("id",)),),
    ),
    Topic(
        "outbound",
        "What the bridge publishes retained over MQTT; an empty value clears.",
        "MQTT topic",
        "registration -> bridge",
        "delete",
        (Message("publish", "an MQTT payload", None, ("id",)),),
    ),
    Topic(
        "dead-letter",
        "Every message that was refused or lost, with its reason.",
        "original key",
        "all -> people",
        "delete",
        (Message("dead-letter", "reason, detail, source and payload", "dead-letter", ("id", "stage")),),
    ),
)
