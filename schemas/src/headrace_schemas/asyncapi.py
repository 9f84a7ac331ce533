"""The AsyncAPI 3.0 document: every topic as a channel, with keys, headers, payloads and examples.

Its schemas are the documents with `$id` taken out and references turned into pointers into the document itself, so no
reader needs a registry. They use nothing that JSON Schema draft 07 (AsyncAPI's own) reads in another way.
"""

from __future__ import annotations

import json
from typing import Any

from headrace_schemas import NAMES, SHARED, examples, schema
from headrace_schemas.records import headers_schema
from headrace_schemas.topics import TOPICS, Message, Topic, Value

BINDING = "0.5.0"
URN = "urn:headrace:schema:"
SHOWN_EXAMPLES = 3


def asyncapi() -> str:
    """The document, as JSON."""
    document = {
        "asyncapi": "3.0.0",
        "info": {"title": "headrace", "version": "1", "description": "Topics of headrace; prefix `headrace.`."},
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic) for topic in TOPICS},
        "components": {
            "messages": {_name(topic, message): _message(message) for topic in TOPICS for message in topic.messages},
            "schemas": {name: _embedded(name) for name in (*NAMES, SHARED)},
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _name(topic: Topic, message: Message) -> str:
    return f"{topic.name}.{message.name}".replace("<", "").replace(">", "")


def _channel(topic: Topic) -> dict[str, Any]:
    return {
        "address": f"headrace.{topic.name}",
        "description": f"{topic.summary} Key: {topic.key}. {topic.flow}.",
        "messages": {
            message.name: {"$ref": f"#/components/messages/{_name(topic, message)}"} for message in topic.messages
        },
        "bindings": {
            "kafka": {"topicConfiguration": {"cleanup.policy": [topic.retention]}, "bindingVersion": BINDING},
        },
    }


def _message(message: Message) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": message.name,
        "summary": message.summary,
        "headers": _local(headers_schema(message), "headers"),
        "payload": _payload(message),
        "bindings": {"kafka": {"key": _local(message.key, "key"), "bindingVersion": BINDING}},
        "examples": _examples(message),
    }
    if message.value is Value.BYTES:
        described["contentType"] = "application/octet-stream"
    return described


def _payload(message: Message) -> dict[str, Any]:
    if message.document is not None:
        return {"$ref": f"#/components/schemas/{message.document}"}
    if message.value is Value.BYTES:
        return {"type": "string", "contentEncoding": "binary", "description": "bytes that headrace does not judge"}
    if message.value is Value.NONE:
        return {"type": "null", "description": "no value: a tombstone"}
    return {"type": ["string", "null"], "maxLength": 0, "description": "no payload"}


def _examples(message: Message) -> list[dict[str, Any]]:
    headers = {name: described["examples"][0] for name, described in message.headers.items()}
    if message.document is not None:
        payloads = examples(message.document)["valid"][:SHOWN_EXAMPLES]
    else:
        payloads = [{Value.BYTES: '{"celsius": 21.5}', Value.NONE: None, Value.EMPTY: ""}[message.value]]
    return [{"headers": headers, "payload": payload} for payload in payloads]


def _embedded(name: str) -> dict[str, Any]:
    described = {key: value for key, value in schema(name).items() if key not in ("$id", "$schema")}
    embedded: dict[str, Any] = _local(described, name)
    return embedded


def _local(value: Any, name: str) -> Any:
    """The same with every reference as a pointer into the AsyncAPI document; `name` is the schema that it stands in."""
    if isinstance(value, list):
        return [_local(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _local(item, name) for key, item in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str):
        found["$ref"] = pointer(reference, name)
    return found


def pointer(reference: str, name: str) -> str:
    """Where `reference`, made in the document `name`, points in the AsyncAPI document."""
    whole, _, below = reference.partition("#")
    target = whole.removeprefix(URN).rpartition(":")[0] if whole else name
    return f"#/components/schemas/{target}{below}"
