"""Every schema takes its valid examples and refuses each invalid one."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from headrace_schemas import NAMES, examples, schema, validator

VALID = [(name, document) for name in NAMES for document in examples(name)["valid"]]
INVALID = [(name, document) for name in NAMES for document in examples(name)["invalid"]]


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_a_valid_schema_with_examples_of_both_kinds(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    assert examples(name)["valid"]
    assert examples(name)["invalid"]


@pytest.mark.parametrize(("name", "document"), VALID)
def test_a_valid_example_passes(name: str, document: Any) -> None:
    assert list(validator(name).iter_errors(document)) == []


@pytest.mark.parametrize(("name", "document"), INVALID)
def test_an_invalid_example_is_refused(name: str, document: Any) -> None:
    assert list(validator(name).iter_errors(document)) != []
