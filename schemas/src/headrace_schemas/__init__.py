"""headrace schemas: what is on the wire.

Each document of a topic or of the HTTP API has a JSON Schema (2020-12) in `documents/` and valid and invalid examples
in `examples/`. `topics.py` says which document, key and headers a record of each topic has; `records.py` checks a whole
record. `generate.py` writes what follows from all this: `types.py`, `spark/`, `asyncapi.json` and `docs/topics.md`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

NAMES = (
    "batch",
    "changelog-marker",
    "dead-letter",
    "entity",
    "http-create",
    "http-created",
    "http-entities",
    "http-patch",
    "http-registration",
    "http-registrations",
    "http-status",
    "problem",
    "registration",
    "registration-message",
    "reply",
    "request",
    "routed-register",
    "routed-remove",
    "routed-twin",
    "routed-update",
    "spark-job",
    "status",
    "timeline-event",
    "timeline-reply",
)
SHARED = "common"
"""Definitions that documents refer to; no document of its own."""


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of the document `name`, one of `NAMES`, or `SHARED`. Raises FileNotFoundError for another."""
    return _read(f"documents/{name}.json")


def examples(name: str) -> dict[str, list[Any]]:
    """`valid` and `invalid` examples of the document `name`."""
    return _read(f"examples/{name}.json")


def spark_schema(name: str) -> dict[str, Any]:
    """The Spark schema (a StructType as JSON) of the document `name`, one of `spark_types.NAMES`."""
    return _read(f"spark/{name}.json")


@cache
def validator(name: str) -> Draft202012Validator:
    """A validator of the document `name`; `iter_errors(document)` tells what is wrong."""
    return validator_of(schema(name))


def validator_of(described: dict[str, Any]) -> Draft202012Validator:
    """A validator of any schema that refers to the documents."""
    return Draft202012Validator(described, registry=_registry())


@cache
def _registry() -> Registry[Any]:
    return Registry[Any]().with_resources(
        (document["$id"], Resource.from_contents(document)) for document in map(schema, (*NAMES, SHARED))
    )


def _read(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath(path).read_text("utf-8"))
    return loaded
