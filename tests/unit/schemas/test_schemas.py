"""Every schema takes its valid examples and refuses each invalid one, as do the types as far as a type can."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from headrace_schemas import NAMES, SHARED, examples, schema, types, validator
from headrace_schemas.python_types import Unreadable, _block

VALID = [(name, document) for name in NAMES for document in examples(name)["valid"]]
INVALID = [(name, document) for name in NAMES for document in examples(name)["invalid"]]
OPEN = ("http-create", "problem", "registration-message", "timeline-reply")
"""Documents with members that no type can name."""


def type_of(name: str) -> Any:
    return getattr(types, "".join(word.capitalize() for word in name.split("-")))


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_a_valid_schema_with_examples_of_both_kinds(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert schema(name)["$id"] == f"urn:headrace:schema:{name}:1"
    assert examples(name)["valid"]
    assert examples(name)["invalid"]


def test_what_is_shared_is_a_valid_schema() -> None:
    Draft202012Validator.check_schema(schema(SHARED))


@pytest.mark.parametrize(("name", "document"), VALID)
def test_a_valid_example_passes_and_its_type_gives_it_back(name: str, document: Any) -> None:
    assert list(validator(name).iter_errors(document)) == []
    back = json.loads(msgspec.json.encode(msgspec.json.decode(json.dumps(document), type=type_of(name))))
    if name in OPEN:
        assert back.items() <= document.items()
    else:
        assert back == document


@pytest.mark.parametrize(("name", "document"), INVALID)
def test_an_invalid_example_is_refused(name: str, document: Any) -> None:
    assert list(validator(name).iter_errors(document)) != []


@pytest.mark.parametrize("name", ["batch", "changelog-marker", "http-created", "http-patch", "request", "routed-twin"])
def test_a_type_refuses_what_the_schema_refuses_if_the_schema_has_no_condition(name: str) -> None:
    for document in examples(name)["invalid"]:
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(json.dumps(document), type=type_of(name))


@pytest.mark.parametrize("member", ["time", "opened_at", "closed_at"])
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_time_beyond_64_bits_is_refused_by_schema_and_type(member: str, value: int) -> None:
    document = examples("batch")["valid"][0] | {member: value}
    assert not validator("batch").is_valid(document)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps(document), type=types.Batch)


def test_a_union_is_decoded_by_its_state() -> None:
    waiting = next(e for e in examples("status")["valid"] if e["state"] == "pending")
    assert isinstance(msgspec.json.decode(json.dumps(waiting), type=type_of("status")), types.StatusPending)


def test_the_generator_of_types_refuses_what_it_cannot_say() -> None:
    with pytest.raises(Unreadable):
        _block("Nothing", {"type": "object", "properties": {}}, "nothing")
