"""Whatever is asked, in or out of the document: no answer is off its schema, and none is a 500 (schemathesis)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace_api import openapi
from headrace_api.examples import MESSAGES, START_MS
from tests.support.served import Address, raw, served
from tests.support.status_api import fixture

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    response_headers_conformance,
]  # fmt: skip
KNOWN = {"root": ["te"], "s1": ["device", "line"], "s2": ["press", "oven", "main"], "s3": ["service", "%20"],
         "s4": ["monitor"], "key": ["os", "name", "interval_s"], "resource": ["database"],
         "timeline": ["jobs"], "id": ["bill-7", "a/b"], "lease_id": ["kwCmYmlsbC03Ag"],
         "consumer": ["worker-1"]}  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """The app behind the server of the process, on a free port."""
    messages = [(START_MS + at, topic, payload) for at, topic, payload in MESSAGES]
    given = fixture(tmp_path_factory.mktemp("api"), messages)
    with served(given.app) as address:
        yield address
        given.calls.close()


schema = schemathesis.openapi.from_dict(openapi.DOCUMENT).exclude(path="/{root}/v1/registration-events")
"""Event streams do not end: test_events."""


def often_what_is_there(drawn: dict[str, Any]) -> dict[str, Any]:
    """Most values name what the examples have; which, follows from the value that was drawn."""
    return {
        name: ([*KNOWN[name], *KNOWN[name], value])[len(str(value)) % (2 * len(KNOWN[name]) + 1)]
        for name, value in drawn.items()
    }


@seed(20)
@schema.parametrize()
@settings(
    max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_no_answer_is_off_its_schema(case: Any, address: Address) -> None:
    if (case.query or {}).get("wait"):
        case.query["wait"] = 0  # nobody changes anything here; how long is held is tested in test_app
    case.path_parameters = often_what_is_there(case.path_parameters or {})
    response = case.call(base_url=f"http://127.0.0.1:{address[1]}")
    case.validate_response(response, checks=CHECKS)


SEGMENTS = b"te v1 entities registrations device press twin config os %2F % %00 %ED%A0%80 %FF .. a+b # {} \xc3\xa9 \x00"
QUERIES = b"""limit=1 cursor=W10 cursor=%FF state=%00 parent=a%2Fb%2F%2F%2F type=x&type=y x=%ED%A0%80 wait=0 wait=-1
root=%F0%9F%92%A9 waiting_for=a/b/c/d/e limit=\xd9\xa3 & = ;"""
LONG = [b"limit=" + b"9" * 5000, b"min_age_ms=" + b"9" * 5000]
SEGMENT = st.sampled_from([*SEGMENTS.split(b" "), b"", b" "])
QUERY = st.just(b"") | st.sampled_from([*QUERIES.split(), *LONG]).map(lambda text: b"?" + text)
SHAPE = st.lists(SEGMENT, max_size=8).map(lambda parts: b"/" + b"/".join(parts))
KNOWN_SHAPE = st.tuples(st.sampled_from([b"/te/v1/entities/", b"/te/v1/registrations/", b"/v1/status"]), SHAPE).map(
    lambda pair: pair[0] + pair[1][1:]
)
TARGET = st.tuples(SHAPE | KNOWN_SHAPE | st.binary(max_size=20), QUERY).map(b"".join)
METHOD = st.sampled_from([b"GET", b"GET", b"GET", b"HEAD", b"POST", b"DELETE", b"BREW", b"OPTIONS", b"get", b"\xff"])


@seed(21)
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(METHOD, TARGET, st.sampled_from([b"", b"If-None-Match: *\r\n", b"If-None-Match: \xff,\r\n", b"X: \x01\r\n"]))
def test_bytes_that_no_client_would_send_are_answered(
    address: Address, method: bytes, target: bytes, header: bytes
) -> None:
    request = b"%s %s HTTP/1.1\r\nHost: x\r\n%sConnection: close\r\n\r\n" % (method, target, header)
    status, media, body = raw(address, request)
    assert status < 500, request
    if status >= 400:
        assert media == "application/problem+json", request
        if method != b"HEAD" and body:
            jsonschema.validate(json.loads(body), openapi.SCHEMAS["Problem"])


def test_what_is_not_http_is_a_problem_document(address: Address) -> None:
    status, media, body = raw(address, b"nonsense\r\n\r\n")
    assert (status, media) == (400, "application/problem+json")
    assert json.loads(body)["reason"] == "invalid_request"


def test_the_whole_url_may_be_the_target(address: Address) -> None:
    request = b"GET http://x/te/v1/entities/device/press HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    status, _, body = raw(address, request)
    assert (status, json.loads(body)["@id"]) == (200, "main-dev:device:press")
