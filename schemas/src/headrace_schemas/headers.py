"""Headers and keys of records. Both are bytes in Kafka; a schema here judges their UTF-8 text.

`o` of a changelog is the one header that is no text: eight bytes, a signed big-endian integer.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
Headers = dict[str, Schema]


def shared(name: str) -> Schema:
    """A reference to a definition of `documents/common.json`."""
    return {"$ref": f"urn:headrace:schema:common:1#/$defs/{name}"}


def text(description: str, pattern: str, *examples: str) -> Schema:
    """The schema of a text."""
    return {"description": description, "type": "string", "pattern": pattern, "examples": list(examples)}


def one_of(description: str, *values: str) -> Schema:
    """The schema of a text that is one of `values`."""
    return {"description": description, "type": "string", "enum": list(values), "examples": [values[0]]}


def kind(value: str) -> Headers:
    """What kind of record this is."""
    return {"kind": one_of("kind of record", value)}


def id_of(stage: str) -> Headers:
    """The id of an emission: the same in every repeat (architecture.md, Promises)."""
    words = "<stage>:<input partition>:<input offset>:<index within the record>"
    return {"id": text(words, rf"^{stage}:[0-9]+:[0-9]+:[0-9]+$", f"{stage}:0:4711:0")}


BINARY: Schema = {"type": "string", "contentEncoding": "binary"}

MQTT: Headers = {
    "topic": text("MQTT topic, unchanged", r"^[^+#]+$", "te/device/press///m/temperature"),
    "qos": one_of("quality of service it came with", "1", "0", "2"),
    "dup": one_of("1: the MQTT broker sent it again", "0", "1"),
    "received": text("UTC milliseconds by the bridge's clock; information only", "^[0-9]+$", "1760000000000"),
}
MQTT_OPTIONAL: Headers = {
    "retain": one_of("1: it is a retained message; missing: the bridge cannot see it (registration.md 9)", "0", "1"),
    "content-type": {"description": "MQTT 5 property", "type": "string", "examples": ["application/json"]},
    "response-topic": {"description": "MQTT 5 property", "type": "string", "examples": ["answers/7"]},
    "correlation-data": BINARY | {"description": "MQTT 5 property", "examples": ["7"]},
    "traceparent": {
        "description": "W3C trace context",
        "type": "string",
        "examples": ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
    },
}
USER_PROPERTY = "^mqtt-"
"""Names of headers that hold user properties of MQTT 5."""

RECEIPT: Headers = {
    "receipt_time": text("UTC milliseconds: the clock of raw (batching.md 4.2)", "^[0-9]{1,18}$", "1760000000000")
}
ENTITY: Headers = {
    "entity": shared("entity-name") | {"examples": ["te/device/press//"]},
}
DATA: Headers = {
    "topic": MQTT["topic"],
    "channel": text("what follows the topic id (registration.md 3)", "^[^/]", "m/temperature"),
}
DEAD_LETTER: Headers = {
    "id": text(
        "place of the record in the input of the stage or job (`element`: of the member too); of a message that the "
        "bridge refuses, `bridge:` and a SHA-256 of topic and payload",
        "^([A-Za-z0-9._-]+(:[0-9]+){2,3}|bridge:[0-9a-f]{64})$",
        "batching:0:4711:0",
        "meters:1:17",
        "bridge:" + "0f" * 32,
    ),
    "stage": text(
        "who refused or lost it",
        r"^(registration|batching|timeline\..+|bridge|bridge-outbound|spark\..+)$",
        "batching",
        "registration",
        "timeline.retries",
        "bridge",
        "bridge-outbound",
        "spark.meters",
    ),
}
COMMAND: Headers = {
    "tl-op": text("operation (timeline.md 5); without it: create, or cancel", "^[a-z_]+$", "move", "buffer_in"),
    "tl-args": text("its arguments, a JSON object", r"^\s*\{", '{"group": "billing", "delay_ms": 5}'),
    "tl-request-id": text("the same in every repeat of the command (timeline.md 8)", "", "7f3a"),
    "tl-reply-to": text("instance that the reply is for; without it, there is none", "", "api-1"),
    "tl-reply-partition": text("partition of the reply", "^[0-9]{1,9}$", "0"),
    "tl-correlation-id": text("key of the reply", "", "7f3a"),
    "tl-instance": text("who sent it, whose clock is compared with the log's (timeline.md 12.2)", "", "api-1"),
    "tl-sent-at": text(
        "UTC milliseconds by the sender's clock; never when something is due", "^[0-9]+$", "1760000000000"
    ),
    "tl-producer-group": text("owner of the message, without tl-op", "", "billing"),
    "deliver-at": text("UTC milliseconds; without tl-op", "^[0-9]+$", "1760000000000"),
    "delay-ms": text("milliseconds from now; without tl-op", "^[0-9]+$", "60000"),
    "id": text("of a record that the stage on a buffer's source wrote", r"^timeline\.[A-Za-z0-9_-]+\.in(:[0-9]+){3}$",
               "timeline.retries.in:0:4711:0"),
}  # fmt: skip
EVENT: Headers = {
    "id": text(
        "`<stage>:<input partition>:<input offset>:<index within the record>`",
        r"^timeline\.[A-Za-z0-9_-]+(:[0-9]+){3}$",
        "timeline.retries:0:4711:0",
    )
}
CHANGED: Headers = {
    "event": one_of(
        "what happened (docs/engines/timeline.md)", "created", "moved", "cancelled", "extended", "released",
        "given_back", "completed", "leased", "parked", "emitted", "purged", "configured", "frozen", "unfrozen",
        "dropped",
    )
}  # fmt: skip
REPLY: Headers = {"tl-reply-to": COMMAND["tl-reply-to"]}
PARKED: Headers = {
    "reason": one_of("why it is here: its deliveries, or the partition it came in", "DELIVERIES_EXHAUSTED", "MISROUTED")
}
SOURCE: Headers = {
    "o": BINARY | {"description": "offset of the input up to which the chunk goes, int64", "examples": ["\0" * 8]}
}

NO_KEY: Schema = {"type": "null"}
ROOT_KEY: Schema = {"description": "root", "type": "string", "pattern": "^[^/+#]+$"}
FIRST_LEVEL_KEY: Schema = {"description": "first topic level; empty if the topic begins with a slash", "type": "string"}
ROOT_OR_NO_KEY: Schema = {"description": "root, or none and the partition named", "type": ["string", "null"]}
ENTITY_KEY: Schema = {"description": "root/topic-id", "allOf": [shared("entity-name")]}
TOPIC_KEY: Schema = text("MQTT topic", r"^[^+#\u0000]+$", "te/device/press//")
CORRELATION_KEY: Schema = text("correlation id of the request", "^[^\\u0000]+$", "7f3a")
MESSAGE_KEY: Schema = {
    "description": "id of the message, or none and the partition named", "type": ["string", "null"],
}  # fmt: skip
ANY_KEY: Schema = {"description": "key of the original record", "type": ["string", "null"]}
STATE_KEY: Schema = {"description": "family byte and the rest of the state's key", **BINARY}
