"""Schemas and code judge alike: what one refuses, the other refuses. Where they differ, the test says so."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.errors import ConfigError
from headrace_core.registration import topics
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.message import read_definition
from headrace_core.registration.reasons import HTTP_STATUS, LOST, Refusal
from headrace_core.registration.routes import problem
from headrace_core.registration.stage import read_request
from headrace_schemas import examples, schema, validator, validator_of
from headrace_schemas.headers import shared
from headrace_spark.checks import check
from headrace_spark.settings import Settings
from headrace_spark.transforms.decode import Rejected, decode
from headrace_spark.transforms.measurements import measurements

CONFIG = RegistrationConfig()
ENTITY = "device/press//"
SEGMENTS = st.lists(st.sampled_from(["", "a", "device", "é\n", "+", "x#", "\0"]), max_size=6).map("/".join)
SCALARS = st.sampled_from([None, "device", "child-device", "service", "thing", "", "a/b", "a+", "x", 1, True, [], {}])
NAMES = st.sampled_from(["@type", "@id", "@parent", "@health", "@x/y", "id", "name", "", "a/b", "\n/", "/"])
MESSAGES = st.dictionaries(NAMES, SCALARS | SEGMENTS, max_size=5)


def refused(value: Any) -> str | None:
    try:
        read_definition(CONFIG, ENTITY, value)
    except Refusal as refusal:
        return refusal.reason
    return None


@given(MESSAGES | SCALARS)
@settings(max_examples=300, deadline=None)
def test_a_registration_message_is_refused_by_code_and_schema_alike(value: Any) -> None:
    """Except a parent that is the entity itself, which the schema cannot know."""
    reason = refused(value)
    if reason == "invalid_parent" and topics.topic_id(value["@parent"]) == ENTITY:
        return
    assert validator("registration-message").is_valid(value) == (reason is None), reason


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_the_examples_of_registration_messages_are_what_the_code_says(kind: str) -> None:
    for document in examples("registration-message")[kind]:
        assert (refused(document) is None) == (kind == "valid"), document


@given(SEGMENTS)
@settings(max_examples=300, deadline=None)
def test_a_reference_is_what_the_code_reads_and_a_topic_id_is_what_it_makes_of_it(text: str) -> None:
    try:
        made = topics.topic_id(text)
    except Refusal:
        assert not validator_of(shared("reference")).is_valid(text)
        return
    assert validator_of(shared("reference")).is_valid(text)
    assert validator_of(shared("topic-id")).is_valid(made)
    assert validator_of(shared("topic-id")).is_valid(text) == (made == text)
    assert validator_of(shared("entity-name")).is_valid(f"te/{made}")


@given(st.text(st.sampled_from("aé/@+#\n"), max_size=3))
@settings(max_examples=200, deadline=None)
def test_a_twin_key_is_what_the_code_takes(text: str) -> None:
    try:
        topics.check_twin_key(text)
    except Refusal:
        assert not validator_of(shared("twin-key")).is_valid(text)
        return
    assert validator_of(shared("twin-key")).is_valid(text)


@pytest.mark.parametrize("reason", sorted({*HTTP_STATUS, *LOST, "invalid_payload", "no_parent", "invalid_cursor"}))
def test_a_problem_of_every_reason(reason: str) -> None:
    body = problem(Refusal(reason, ""), "/te/v1/entities?x=1").body
    assert [e.message for e in validator("problem").iter_errors(body)] == []


def test_the_stage_reads_every_valid_request() -> None:
    for document in examples("request")["valid"]:
        correlation, request = read_request(json.dumps(document).encode())
        assert (correlation, request.method, request.path) == tuple(
            document[name] for name in ("correlation", "method", "path")
        )


def taken(value: Any) -> bool:
    """Whether the Spark writer takes the whole document."""
    try:
        return not measurements(decode(json.dumps(value).encode(), 1_000_000)).refusals
    except Rejected:
        return False


LEAVES = st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(LEAVES | st.text(max_size=3).map(lambda text: text.replace("\0", "")), lambda below: (
    st.lists(below, max_size=3) | st.dictionaries(st.text("abc", max_size=2), below, max_size=3)
), max_leaves=4)  # fmt: skip
ODD = st.sampled_from([None, "", "x", 1, 2**63, -(2**63) - 1, True, [], {}, "0" * 32, "flush"])
MEMBER = {"type": "temperature", "time": 100, "received": 110, "value": 1}
BATCH = examples("batch")["valid"][0]


@given(st.sampled_from([*BATCH, "more"]), ODD, st.sampled_from([*MEMBER, "more"]), ODD, st.booleans(), VALUES)
@settings(max_examples=300, deadline=None)
def test_a_batch_is_refused_by_the_spark_writer_and_the_schema_alike(
    name: str, odd: Any, part: str, strange: Any, inside: bool, value: Any
) -> None:
    """Except what the writer knows more of: a null in a value, and equal metrics of a member."""
    member = MEMBER | {"value": value}
    document = BATCH | {"members": [MEMBER, member | {part: strange}]} if inside else BATCH | {name: odd}
    if inside and part == "value" and strange is None:
        assert validator("batch").is_valid(document)
        assert not taken(document)
        return
    assert taken(document) == validator("batch").is_valid(document)


@pytest.mark.parametrize("name", [*BATCH])
def test_a_batch_without_a_member_is_refused_by_both(name: str) -> None:
    document = {key: value for key, value in BATCH.items() if key != name}
    assert not taken(document)
    assert not validator("batch").is_valid(document)


def job(value: Any) -> bool:
    """Whether the Spark writer starts with this job file."""
    try:
        check(msgspec.convert(value, Settings))
    except (msgspec.ValidationError, ConfigError):
        return False
    return True


def test_the_job_file_has_the_members_that_the_writer_reads() -> None:
    fields = {field.name: field.required for field in msgspec.structs.fields(Settings)}
    assert set(schema("spark-job")["properties"]) == set(fields)
    assert set(schema("spark-job")["required"]) == {name for name, required in fields.items() if required}


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_the_examples_of_job_files_are_what_the_writer_says(kind: str) -> None:
    for document in examples("spark-job")[kind]:
        assert job(document) == (kind == "valid"), document
