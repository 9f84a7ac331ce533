"""JSON Schemas of the HTTP answers and bodies, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

KIND_OF_ENTITY = {"type": "string", "enum": ["device", "child-device", "service"]}
STATE = {"type": "string", "enum": ["unknown", "pending", "registered", "expired", "removed"]}
TEXT = {"type": "string"}
MAYBE_TEXT = {"type": ["string", "null"]}
COUNT = {"type": "integer", "minimum": 0}
COUNTS = {"type": "object", "additionalProperties": {"type": "integer"}}


def closed_object(
    required: dict[str, Any], optional: dict[str, Any] | None = None, *, closed: bool = True
) -> dict[str, Any]:
    """An object with these members and, if it is closed, no other ones."""
    found: dict[str, Any] = {"type": "object", "required": list(required), "properties": required | (optional or {})}
    return found | ({"additionalProperties": False} if closed else {})


def ref(name: str) -> dict[str, str]:
    """A reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


PARTS = {"@type": KIND_OF_ENTITY, "@id": TEXT}
REFERENCES = {"@parent": TEXT, "@health": TEXT}
STATUS_HEAD = {"@topic-id": TEXT, "root": TEXT, "state": STATE, "since": {"type": ["integer", "null"]}}

CACHE = ("telemetry", "telemetry_bytes", "metadata", "metadata_bytes")
PLACE = closed_object({"offset": COUNT, "lag": COUNT, "source": {"type": "integer"}})

AMOUNT = {
    "oneOf": [COUNT, COUNTS],
    "description": "units per second: one number, or one by dimension",
}
LEASE_OWNER = closed_object(
    {
        "owner": TEXT, "want": COUNT, "share": COUNT, "partitions": COUNT, "granted": AMOUNT, "used": AMOUNT,
        "reserve": {"type": "boolean"},
    }
)  # fmt: skip

SCHEMAS: dict[str, Any] = {
    "Capacity": closed_object(
        {
            "resource": TEXT, "shared_capacity": AMOUNT, "max_capacity": AMOUNT, "granted": AMOUNT, "used": AMOUNT,
            "free": AMOUNT, "waiting": COUNT, "pause_ms": COUNT, "factor": {"type": "number"},
            "learning": {"type": "boolean"}, "config_version": COUNT, "in_force_version": COUNT,
            "owners": {"type": "array", "items": LEASE_OWNER},
        }
    ),
    "Problem": closed_object(
        {"type": TEXT, "title": TEXT, "status": {"type": "integer"}, "detail": TEXT, "instance": TEXT, "reason": TEXT},
        closed=False,
    ) | {"description": "RFC 9457; `type` is `urn:headrace:<part>:<reason>`; part: registration or capacity"},
    "Entity": closed_object({"@topic-id": TEXT} | PARTS, REFERENCES),
    "Registration": closed_object(
        STATUS_HEAD,
        PARTS | REFERENCES | {
            "automatic": {"type": "boolean"},
            "age_ms": COUNT,
            "expires_at": COUNT,
            "registration": {"type": "boolean"},
            "waiting_for": {"type": ["string", "null"]},
            "missing": {"type": "array", "items": TEXT},
            "cycle": {"type": "boolean"},
            "cached": closed_object({"telemetry": COUNT, "metadata": COUNT, "bytes": COUNT}),
            "last_error": closed_object({"reason": TEXT, "receipt_time": {"type": "integer"}}),
        },
    ),
    "Totals": closed_object(
        {
            "entities": COUNTS, "automatic": COUNT, "pending": COUNT, "dropped": COUNTS,
            "cache": closed_object(dict.fromkeys(CACHE, COUNT)),
        }
    ),
    "Status": closed_object(
        {
            "ready": {"type": "boolean"},
            "config": {"type": "object"},
            "replica": closed_object({
                "topic": TEXT, "kafka_up": {"type": "boolean"},
                "partitions": {
                    "type": "object",
                    "additionalProperties": PLACE,
                },
            }),
            "counters": {"type": "object", "additionalProperties": COUNTS},
            "roots": {"type": "object", "additionalProperties": ref("Totals")},
        },
        {"reason": TEXT},
    ),
    "Create": closed_object(
        {"@topic-id": TEXT}, dict.fromkeys(("@type", "@id", "@parent", "@health"), MAYBE_TEXT), closed=False
    ) | {"description": "a registration message (registration.md 4) with the topic id; other members are twin data"},
    "Created": closed_object({"@topic-id": TEXT}),
    "Patch": closed_object({}, dict.fromkeys(("@parent", "@health"), MAYBE_TEXT)),
    "Twin": {"type": "object", "description": "all twin data, by key; null is left out"},
}  # fmt: skip
