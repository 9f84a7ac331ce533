"""Spark schemas from the JSON Schemas: `spark/<name>.json`, a StructType as `StructType.fromJson` reads it.

For `from_json` in readers of a topic. Any JSON value is a VARIANT (Spark 4). `from_json` fills what it does not find
with null, so it judges nothing: the writer decodes on its own (spark-writer.md 3).
"""

from __future__ import annotations

import json
from typing import Any

from headrace_schemas import SHARED, schema

NAMES = ("batch", "dead-letter", "entity")
SIMPLE = {"integer": "long", "number": "double", "string": "string", "boolean": "boolean"}
Schema = dict[str, Any]
Type = str | dict[str, Any]


def spark_type(name: str) -> str:
    """The StructType of the document `name`, as JSON."""
    return json.dumps(_type(schema(name), name), indent=2) + "\n"


def _type(described: Schema, document: str) -> Type:
    if "$ref" in described:
        return _referred(described["$ref"], document)
    kind = described.get("type")
    if isinstance(kind, list):
        kind = next(name for name in kind if name != "null")
    if kind is None:
        return "variant"
    if kind == "array":
        return {"type": "array", "elementType": _type(described["items"], document), "containsNull": False}
    if kind == "object" and "properties" in described:
        return _struct(described, document)
    if kind == "object":
        below = described["additionalProperties"]
        return {"type": "map", "keyType": "string", "valueType": _type(below, document), "valueContainsNull": True}
    return SIMPLE[kind]


def _struct(described: Schema, document: str) -> Type:
    required = described.get("required", [])
    fields = [
        {"name": name, "type": _type(part, document), "nullable": name not in required or _nullable(part),
         "metadata": {"comment": part["description"]} if "description" in part else {}}
        for name, part in described["properties"].items()
    ]  # fmt: skip
    return {"type": "struct", "fields": fields}


def _nullable(described: Schema) -> bool:
    kind = described.get("type")
    return isinstance(kind, list) and "null" in kind


def _referred(reference: str, document: str) -> Type:
    whole, _, part = reference.partition("#/$defs/")
    target = SHARED if whole else document
    return _type(schema(target)["$defs"][part], target)
