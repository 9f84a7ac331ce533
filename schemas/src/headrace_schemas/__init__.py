"""headrace schemas: what is on the wire.

Each document of a topic has a JSON Schema (2020-12) in `documents/` and valid and invalid examples in `examples/`.
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
    "dead-letter",
    "entity",
    "routed-register",
    "routed-remove",
    "routed-twin",
    "routed-update",
)


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of the document `name`, one of `NAMES`. Raises FileNotFoundError for another."""
    return _read(f"documents/{name}.json")


def examples(name: str) -> dict[str, list[Any]]:
    """`valid` and `invalid` examples of the document `name`."""
    return _read(f"examples/{name}.json")


@cache
def validator(name: str) -> Draft202012Validator:
    """A validator of the document `name`; `iter_errors(document)` tells what is wrong."""
    return Draft202012Validator(schema(name), registry=_registry())


@cache
def _registry() -> Registry[Any]:
    return Registry[Any]().with_resources(
        (document["$id"], Resource.from_contents(document)) for document in map(schema, NAMES)
    )


def _read(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath(path).read_text("utf-8"))
    return loaded
