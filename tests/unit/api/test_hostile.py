"""Every call of the document with input that no client should send: each answer is one that the document knows, each
refusal a problem document (RFC 9457), none is a 500. Timelines run on the real engine, so it must bear all of it, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from headrace_api import openapi
from headrace_api.examples import MESSAGES, START_MS
from headrace_core.timeline.settings import Settings
from tests.support.served import Address, raw, served
from tests.support.status_api import Fixture, fixture

PROBLEM = {"type", "title", "status", "detail"}
NEVER = "/{root}/v1/registration-events"
"""An event stream does not end: test_events."""

TEXTS = [
    "",
    "a",
    "\0",
    "x" * 256,
    "x" * 5_000,
    "\U0001f4a9",
    "é" * 128,
    "\ud800",
    "..",
    "a/b",
    "%2F",
    "NaN",
    "-1",
    "\x7f",
]
NUMBERS = [-1, 0, 1, 5, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, 1.0, 1.5, 1e308]
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(TEXTS) | st.sampled_from(NUMBERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(TEXTS), VALUES, min_size=1, max_size=2)
BROKEN = [b"{", b"\xff", b"[" * 3_000, b'{"a": 1, "a": 2}', b"NaN", b"\xef\xbb\xbf{}", b'{"delay_ms": 1e999}']
QUERIES = st.sampled_from(
    ["", "-1", "0", "1", "1000", "1001", "9" * 19, "9" * 5_000, "1.5", "%D9%A3", "%00", "%FF", "true", "jobs", "W10",
     "available", "x" * 5_000, "%F0%9F%92%A9"]
)  # fmt: skip
HEADERS = st.sampled_from(
    [b"", b"billing", b"w1", b'"1"', b'"0"', b'"' + b"9" * 30 + b'"', b"*", b"\xff", b"\xf0\x9f\x92\xa9", b"x" * 5_000,
     b"a\tb", b"W/\"1\""]
)  # fmt: skip
SEGMENTS = st.sampled_from([quote(text, "", errors="surrogatepass") for text in TEXTS])
SETTINGS = [name for name in Settings.__struct_fields__ if name != "client_rate"]
"""With a low rate, the rest of a sequence would be refused for it."""
KNOWN = {
    "root": "te", "s1": "device", "s2": "press", "s3": "service", "s4": "monitor", "key": "os", "resource": "database",
    "timeline": "jobs", "id": "bill-7", "lease_id": "kwCmYmlsbC03Ag", "consumer": "w1",
}  # fmt: skip


class Call(NamedTuple):
    """One call of the document."""

    path: str
    method: str
    told: dict[str, Any]

    def names(self, place: str) -> list[str]:
        return [one["name"] for one in self.told.get("parameters", ()) if one["in"] == place]

    @property
    def _media(self) -> list[dict[str, Any]]:
        return list(self.told.get("requestBody", {}).get("content", {}).values())

    @property
    def members(self) -> list[str]:
        """Names of the members that its body may have."""
        schemas = openapi.DOCUMENT["components"]["schemas"]
        found = [schemas.get(one["schema"].get("$ref", "").rpartition("/")[2], one["schema"]) for one in self._media]
        names = [name for one in found for name in one.get("properties", ())]
        return names + ([*SETTINGS] if self.path.endswith("{timeline}") else [])

    @property
    def examples(self) -> list[Any]:
        """Bodies that the document shows."""
        return [one["value"] for media in self._media for one in media.get("examples", {}).values()]


ALL = [
    Call(path, method, told)
    for path, item in openapi.DOCUMENT["paths"].items()
    if path != NEVER
    for method, told in item.items()
    if method in ("get", "put", "post", "patch", "delete")
]
CALLS = [*ALL, *(call for call in ALL if "{timeline}" in call.path for _ in range(3))]
"""Those of timelines more often: their arguments reach an engine as they are."""
ITEMS = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["create", "move", "cancel", "extend", "release", "complete", "x", 7]),
            "id": st.sampled_from(["bill-7", "b"]) | VALUES,
            "delay_ms": st.just(5_000) | VALUES,
        },
        optional=dict.fromkeys(
            ("timestamp", "version", "lease_id", "lease_ms", "headers", "body", "request_id"), VALUES
        ),
    ),
    max_size=4,
)


def bodies(call: Call) -> st.SearchStrategy[bytes]:
    """What the document shows with none, one or two members odd or missing; now and then something else, or nothing."""
    if not call.told.get("requestBody"):
        return st.sampled_from([b"", b"", b"", b"{}", b"[]", b"{"])
    shown = st.sampled_from(call.examples or [{}])
    odd = st.dictionaries(st.sampled_from([*call.members * 3, "unheard-of"]), VALUES | ITEMS | OBJECTS, max_size=2)
    changed = st.tuples(shown, odd).map(lambda two: {**two[0], **two[1]} if isinstance(two[0], dict) else two[0])
    without = st.tuples(shown, odd).map(lambda two: two[1])
    items = ITEMS.map(lambda found: {"items": found}) if "items" in call.members else changed
    written = st.one_of(items, changed, changed, shown, without, VALUES).map(lambda value: json.dumps(value).encode())
    return st.integers(0, 9).flatmap(lambda n: st.sampled_from(BROKEN) if n == 9 else written)


def seldom(usual: Any, odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what is usual, so that a request gets beyond its first check."""
    return st.integers(0, 7).flatmap(lambda n: odd if n == 7 else st.just(usual))


@st.composite
def requests(draw: st.DrawFn) -> tuple[Call, bytes]:
    call = draw(st.sampled_from(CALLS))
    target = call.path
    for name in call.names("path"):
        target = target.replace(f"{{{name}}}", draw(seldom(KNOWN.get(name, "a"), SEGMENTS)))
    names = draw(st.lists(st.sampled_from(call.names("query") or ["limit"]), max_size=2, unique=True))
    names = (
        [*names, *draw(seldom([], st.just(["unheard-of"])))]
        if call.method == "get"
        else draw(seldom([], st.just(names)))
    )
    query = "&".join(f"{name}={draw(QUERIES)}" for name in names if name != "wait")
    headers = [b"Host: x", b"Connection: close"]
    for name in call.names("header"):
        value = draw(seldom({"X-Producer-Group": b"billing", "X-Consumer-Id": b"w1"}.get(name), HEADERS))
        headers += [] if value is None else [name.encode() + b": " + value]
    body = draw(bodies(call)) if call.method != "get" else b""
    headers += [b"Content-Type: " + draw(seldom(b"application/json", st.sampled_from([b"text/plain", b"\xff"])))]
    headers += [b"Content-Length: %d" % len(body)]
    line = f"{call.method.upper()} {target}{'?' * bool(query)}{query} HTTP/1.1".encode()
    return call, b"\r\n".join([line, *headers, b"", body])


class Service(NamedTuple):
    """The app behind the server of the process; any client may send as much as it likes."""

    given: Fixture
    address: Address

    def begin(self) -> None:
        """A new timeline with one message that is due; to change a setting makes the API ask for all of them anew."""
        self.given.log_of_timelines.forget()
        assert self.ask(b"PUT /v1/timelines/jobs", b'{"client_rate": 1000000000}') == 201
        body = b'{"id": "bill-7", "delay_ms": 0, "headers": {"a": "b"}}'
        assert self.ask(b"POST /v1/timelines/jobs/messages", body) == 201

    def ask(self, line: bytes, body: bytes) -> int:
        head = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Producer-Group: billing\r\nContent-Length: %d\r\n\r\n"
        return raw(self.address, line + head % len(body) + body).status


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    messages = [(START_MS + at, topic, payload) for at, topic, payload in MESSAGES]
    one = fixture(tmp_path_factory.mktemp("api"), messages)
    one.log_of_timelines.timelines["jobs"] = Settings(partitions=2, bucket_count=8, client_rate=10**9)
    with served(one.app) as address:
        yield Service(one, address)
        one.calls.close()


@seed(22)
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.lists(requests(), min_size=1, max_size=10))
def test_whatever_is_sent_the_answer_is_one_of_the_document(service: Service, all_: list[tuple[Call, bytes]]) -> None:
    service.begin()
    for call, request in all_:
        status, media, body = raw(service.address, request)
        assert str(status) in call.told["responses"] or status in (400, 404, 408, 413, 415, 431), (
            request,
            status,
            body,
        )
        if status >= 400:
            assert media == "application/problem+json", (request, body)
            told = json.loads(body)
            assert told.keys() >= PROBLEM, request
            assert told["status"] == status, request
            assert told["type"].startswith("urn:headrace:"), request
            assert told["detail"], request
