"""The app over a replica made by the real engine: every read of registration.md 12 and 13, and every error."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio

from headrace_api import calls, openapi
from headrace_api.examples import EXAMPLES, MESSAGES, START_MS, WRITES, Example
from headrace_api.progress import PartitionProgress, Progress
from headrace_core.partitioner import partition_of
from headrace_core.registration import queries
from headrace_core.registration.routes import ABSENT, Request, Response
from tests.support.status_api import PARTITIONS, Fixture, fixture

ROOTS = {"te": "main-dev", "r2": "main-2", "r3": "main-3"}


class Asker:
    """Asks the app; paths go out as they are written."""

    def __init__(self, given: Fixture) -> None:
        self.given = given
        transport = httpx.ASGITransport(given.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://api")

    async def ask(
        self, path: str, method: str = "GET", sent: Any = ABSENT, raw: bytes | None = None, **headers: str
    ) -> httpx.Response:
        """`sent` goes as JSON, `raw` as it is."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if sent is not ABSENT:
            raw, names = json.dumps(sent).encode(), {"content-type": "application/json"} | names
        url = httpx.URL("http://api", raw_path=path.encode())
        return await self.client.request(method, url, headers=names, content=raw)


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Asker]:
    messages = [(START_MS + at, topic, payload) for at, topic, payload in MESSAGES]
    messages += [(START_MS, f"{root}/device/d{n}//", {"@type": "child-device"}) for root in ROOTS for n in range(2)]
    # the examples' root holds what MESSAGES say and nothing else
    messages = [m for m in messages if not m[1].startswith("te/device/d")]
    yield Asker(fixture(tmp_path, messages, roots=ROOTS))


def is_problem(answer: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["reason"]) == (status, reason), body
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["type"] == f"urn:headrace:registration:{reason}"
    assert body["status"] == status
    jsonschema.validate(body, openapi.SCHEMAS["Problem"])
    return body


@pytest.mark.parametrize("example", EXAMPLES + WRITES, ids=lambda e: f"{e.method} {e.path} {e.name}")
async def test_the_examples_of_the_document_are_what_is_answered(api: Asker, example: Example) -> None:
    headers = {name.replace("-", "_"): value for name, value in example.headers.items()}
    answer = await api.ask(example.path, example.method, example.sent, **headers)
    assert answer.status_code == example.status
    assert (answer.json() if answer.content else ABSENT) == example.body


def test_examples_fit_their_schemas_and_every_answer_has_one() -> None:
    for path, item in openapi.PATHS.items():
        for method, call in item.items():
            for media in call.get("requestBody", {}).get("content", {}).values():
                assert fit(media) > 0, (path, method)
            for status, response in call["responses"].items():
                for media in response.get("content", {}).values():
                    if not fit(media):
                        assert status not in ("200", "201", "503", "504") or path == "/", (path, method, status)


def fit(media: dict[str, Any]) -> int:
    """How many examples there are; each one fits the schema."""
    schema = media["schema"] | {"components": openapi.DOCUMENT["components"]}
    for example in media.get("examples", {}).values():
        jsonschema.validate(example["value"], schema)
    return len(media.get("examples", {}))


PATHS = [
    "/te/v1/entities",
    "/te/v1/entities/",
    "/te/v1/entities?type=service",
    "/te/v1/entities?root=device/press",
    "/te/v1/entities?parent=device/main&type=&limit=1",
    "/te/v1/entities?root=a&parent=b",
    "/te/v1/entities?nope=1",
    "/te/v1/entities?cursor=abc",
    "/te/v1/entities?limit=1",
    "/te/v1/entities/device/main",
    "/r2/v1/entities",
    "/te/v1/entities/device/press/",
    "/te/v1/entities/device/press//",
    "/te/v1/entities/device%2Fpress",
    "/te/v1/entities/%64evice/press",
    "/te/v1/entities/device/press///twin",
    "/te/v1/entities/device/press///twin/",
    "/te/v1/entities/device/press///twin/name",
    "/te/v1/entities/device/press///twin/a%2Fb",
    "/te/v1/entities/device/press///other",
    "/te/v1/entities/device/press///twin/a/b",
    "/te/v1/entities/%FF/x",
    "/te/v1/entities/device/press///config",
    "/te/v1/entities/device/press///config/interval_s",
    "/te/v1/registrations",
    "/te/v1/registrations?state=unknown,pending",
    "/te/v1/registrations?waiting_for=line/hall",
    "/te/v1/registrations?min_age_ms=4000",
    "/te/v1/registrations?min_age_ms=999999999999999999999999",
    "/t%65/v1/entities",
    "/te/v1/registrations?limit=1",
    "/te/v1/registrations/line/oven",
    "/te/v1/registrations/a/b/c/d/e",
    "/r3/v1/registrations",
    "/te%2Fv1/entities",
    "//v1/entities",
    "/v1",
    "/v2/status",
    "/x/v1/entities",
    "/te/v1/registrations/device/%00",
]


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_is_the_pure_one_on_the_state_of_the_owner(api: Asker, path: str) -> None:
    given = api.given
    part = partition_of(path.split("/")[1].encode(), PARTITIONS)
    if path == "/t%65/v1/entities":
        part = partition_of(b"te", PARTITIONS)
    expected = queries.answer(given.owners[part].state, given.config, Request("GET", path))
    answer = await api.ask(path)
    assert answer.status_code == expected.status
    assert (answer.json() if answer.content else ABSENT) == expected.body
    for name, value in expected.headers.items():
        assert answer.headers[name] == value


async def test_a_tag_saves_the_body_the_second_time(api: Asker) -> None:
    first = await api.ask("/te/v1/entities/device/press")
    again = await api.ask("/te/v1/entities/device/press", if_none_match=f'"x", {first.headers["etag"]}')
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])


async def test_pages_follow_the_links(api: Asker) -> None:
    path, seen = "/te/v1/entities?limit=1", []
    while path:
        answer = await api.ask(path)
        seen += [entity["@topic-id"] for entity in answer.json()]
        path = answer.links.get("next", {}).get("url", "")
    assert seen == ["device/main//", "device/press//", "device/press/service/monitor"]


ALLOWED = {
    "/te/v1/entities": "GET, HEAD, POST, OPTIONS", "/te/v1/entities/device/press": "GET, HEAD, PATCH, DELETE, OPTIONS",
    "/te/v1/entities/device/press///twin/os": "GET, HEAD, PUT, DELETE, OPTIONS",
    "/te/v1/entities/device/press///config": "GET, HEAD, OPTIONS", "/te/v1/registrations": "GET, HEAD, OPTIONS",
    "/te/v1/registrations/device/press": "GET, HEAD, OPTIONS", "/te/v1/registration-events": "GET, HEAD, OPTIONS",
    "/v1/status": "GET, HEAD, OPTIONS", "/healthz": "GET, HEAD, OPTIONS", "/": "GET, HEAD, OPTIONS",
}  # fmt: skip


@pytest.mark.parametrize("path", ALLOWED)
async def test_what_is_not_allowed_is_refused_and_what_is_is_named(api: Asker, path: str) -> None:
    allowed = ALLOWED[path].split(", ")
    answer = await api.ask(path, "OPTIONS")
    assert (answer.status_code, answer.headers["allow"], answer.content) == (204, ALLOWED[path], b"")
    for method in {"POST", "PUT", "PATCH", "DELETE", "TRACE"} - set(allowed):
        answer = await api.ask(path, method)
        is_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == ALLOWED[path]
    is_problem(await api.ask(path, "BREW"), 405, "method_not_allowed")
    assert api.given.mail.sent == []


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS", "GET"])
async def test_nothing_is_not_found(api: Asker, method: str) -> None:
    is_problem(await api.ask("/te/v1/nothing", method), 404, "not_found")
    is_problem(await api.ask("/nobody/v1/entities", method), 404, "not_found")


async def test_totals_are_those_of_all_partitions(api: Asker) -> None:
    body = (await api.ask("/v1/status")).json()
    jsonschema.validate(body, openapi.SCHEMAS["Status"] | {"components": openapi.DOCUMENT["components"]})
    assert body["ready"] is True
    assert body["counters"]["registration"]["in"] == len(MESSAGES) + 4
    assert body["roots"]["te"]["pending"] == 1
    assert body["roots"]["te"]["dropped"] == {"type_change": 1}
    assert [body["roots"][root]["entities"]["child-device"] for root in ROOTS] == [1, 2, 2]
    assert body["config"]["roots"] == ROOTS
    is_problem(await api.ask("/v1/status?x=1"), 400, "invalid_query")


async def test_before_the_replica_has_caught_up_nothing_is_told_about_entities(api: Asker) -> None:
    behind = tuple(replace(p, target=p.offset + 5) for p in api.given.progress.partitions)
    api.given.progress = replace(api.given.progress, partitions=behind)
    answer = await api.ask("/te/v1/entities")
    assert answer.headers["retry-after"] == "1"
    assert "15 records of log" in is_problem(answer, 503, "not_ready")["detail"]
    assert is_problem(await api.ask("/readyz"), 503, "not_ready")["ready"] is False
    assert (await api.ask("/v1/status")).json()["ready"] is False
    assert (await api.ask("/healthz")).status_code == 200


async def test_without_kafka_the_reason_is_told(api: Asker) -> None:
    api.given.progress = Progress(reason="there is no topic x yet")
    assert is_problem(await api.ask("/readyz"), 503, "not_ready")["detail"] == "there is no topic x yet"
    body = (await api.ask("/v1/status")).json()
    assert (body["reason"], body["replica"]["partitions"]) == ("there is no topic x yet", {})
    assert body["roots"]["te"]["entities"]["device"] == 1


async def test_ready_and_healthy(api: Asker) -> None:
    assert (await api.ask("/readyz")).json() == {
        "ready": True,
        "writes": True,
        "events": True,
        "lag": {"0": 0, "1": 0, "2": 0},
        "recovering": [],
    }
    assert (await api.ask("/healthz")).json() == {"status": "ok"}
    api.given.progress = replace(api.given.progress, alive_at=time.monotonic() - 100)
    is_problem(await api.ask("/healthz"), 503, "stalled")


async def test_a_part_that_is_stuck_is_not_healthy(api: Asker) -> None:
    fine = api.given.events_progress
    api.given.events_progress = replace(fine, alive_at=time.monotonic() - 100)
    assert "events" in is_problem(await api.ask("/healthz"), 503, "stalled")["detail"]
    api.given.events_progress, api.given.mail.alive_at = fine, time.monotonic() - 100
    assert "replies" in is_problem(await api.ask("/healthz"), 503, "stalled")["detail"]


async def test_ready_is_the_replica_and_it_is_told_what_else_is_possible(api: Asker) -> None:
    api.given.mail.closed = "writes are not possible: there is no topic x yet"
    api.given.events_progress = Progress(reason="there is no topic y yet")
    answer = await api.ask("/readyz")
    known = {"lag": {"0": 0, "1": 0, "2": 0}, "recovering": []}
    assert answer.json() == {"ready": True, "writes": False, "events": False, **known}
    jsonschema.validate(answer.json(), openapi.READY)


async def test_who_comes_too_early_waits_a_moment(api: Asker) -> None:
    fine = api.given.events_progress
    api.given.mail.starts, api.given.mail.closed, api.given.events_progress = True, "starting", Progress()
    write = asyncio.create_task(api.ask("/te/v1/entities/device/press", "DELETE"))
    head = asyncio.create_task(api.ask("/te/v1/registration-events", "HEAD"))
    await asyncio.sleep(0.1)
    assert not write.done()
    assert not head.done()
    api.given.mail.starts, api.given.mail.closed, api.given.events_progress = False, "", fine
    assert [(await write).status_code, (await head).status_code] == [200, 200]


def test_health_is_progress() -> None:
    behind = Progress("", "log", (PartitionProgress(offset=5, end=9, target=5, source=3),), kafka_up=True)
    soon, late = behind.alive_at + 59, behind.moved_at + 61
    assert behind.trouble(soon) == ""
    assert "stuck" in behind.trouble(late)
    assert "4 records behind" in replace(behind, alive_at=late).trouble(late)
    assert replace(behind, alive_at=late, kafka_up=False).trouble(late) == ""
    at_the_end = replace(behind.partitions[0], offset=9)
    assert replace(behind, alive_at=late, partitions=(at_the_end,)).trouble(late) == ""


async def test_metrics_tell_lag_and_answers(api: Asker) -> None:
    await api.ask("/te/v1/entities")
    text = (await api.ask("/metrics")).text
    assert 'headrace_api_replica_lag{partition="2"} 0.0' in text
    assert 'headrace_api_requests_total{method="GET",status="200"} 1.0' in text
    assert "headrace_api_ready 1.0" in text


async def test_a_bug_is_a_problem_document_without_its_words(api: Asker, tmp_path: Path) -> None:
    for file in tmp_path.glob("replica*"):
        file.write_bytes(b"rubbish" * 1000)
    answer = await api.ask("/te/v1/entities")
    assert "rubbish" not in json.dumps(is_problem(answer, 500, "internal"))


async def test_a_long_poll_ends_with_the_change(api: Asker) -> None:
    path = "/te/v1/registrations/device/press"
    tag = (await api.ask(path)).headers["etag"]
    poll = asyncio.create_task(api.ask(f"{path}?wait=30", if_none_match=tag))
    await until(lambda: open_streams(api) == 1)
    assert not poll.done()
    api.given.feed(START_MS + 9_999, "te/device/press//", b"")
    answer = await asyncio.wait_for(poll, 300)
    assert (answer.status_code, answer.json()["state"]) == (200, "removed")
    assert open_streams(api) == 0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def open_streams(api: Asker) -> float:
    found = api.given.metrics.registry.get_sample_value("headrace_api_streams_open")
    assert found is not None
    return found


async def test_a_change_while_the_first_answer_is_made_ends_a_long_poll(
    api: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = api.given.progress.partitions

    def answer(_request: Request, progress: Progress) -> Response:
        if progress.partitions != before:
            return Response(200, {}, {"@topic-id": "device/press//"})
        api.given.progress = replace(progress, partitions=(PartitionProgress(2, 2, 1, 2),))
        return Response(304, {}, ABSENT)

    monkeypatch.setattr(api.given.calls, "_answers", SimpleNamespace(answer=answer))
    found = await api.ask("/te/v1/registrations/device/press?wait=2", if_none_match="x")
    assert found.status_code == 200


async def test_a_long_poll_without_change_is_not_modified(api: Asker) -> None:
    path = "/te/v1/registrations/device/press"
    tag = (await api.ask(path)).headers["etag"]
    started = time.monotonic()
    answer = await api.ask(f"{path}?wait=1", if_none_match=tag)
    assert (answer.status_code, answer.content) == (304, b"")
    assert time.monotonic() - started >= 1
    assert (await api.ask(f"{path}?wait=60")).status_code == 200  # without a tag nothing is held


@pytest.mark.parametrize("wait", ["61", "-1", "x", "1.5", "99999999999999999999", "%D9%A3"])
async def test_a_wrong_wait_is_refused(api: Asker, wait: str) -> None:
    is_problem(await api.ask(f"/te/v1/registrations/device/press?wait={wait}"), 400, "invalid_query")


async def test_too_many_long_polls_are_refused(api: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MOST_WAITING", 1)
    path = "/te/v1/registrations/device/press"
    tag = (await api.ask(path)).headers["etag"]
    first = asyncio.create_task(api.ask(f"{path}?wait=5", if_none_match=tag))
    await until(lambda: open_streams(api) == 1)
    is_problem(await api.ask(f"{path}?wait=5", if_none_match=tag), 429, "too_many_streams")
    is_problem(await api.ask("/te/v1/registration-events"), 429, "too_many_streams")
    api.given.calls.close()
    assert (await first).status_code == 304


async def test_head_is_get_without_body(api: Asker) -> None:
    answer = await api.ask("/te/v1/entities/device/press", "HEAD")
    assert (answer.status_code, answer.headers["etag"]) == (
        200, (await api.ask("/te/v1/entities/device/press")).headers["etag"],
    )  # fmt: skip
