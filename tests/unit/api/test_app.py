"""The app over a replica made by the real engine: every read of registration.md 12 and 13, and every error."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import pytest_asyncio

from headrace_api import app, openapi
from headrace_api.examples import EXAMPLES, MESSAGES, START_MS, Example
from headrace_api.progress import PartitionProgress, Progress
from headrace_api.replica import Replica
from headrace_core.partitioner import partition_of
from headrace_core.registration import queries
from headrace_core.registration.routes import ABSENT, Request
from tests.support.changelog import changes, message
from tests.support.status_api import PARTITIONS, Fixture, fixture

ROOTS = {"te": "main-dev", "r2": "main-2", "r3": "main-3"}


class Asker:
    """Asks the app; paths go out as they are written."""

    def __init__(self, given: Fixture) -> None:
        self.given = given
        transport = httpx.ASGITransport(given.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://api")

    async def ask(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(method, httpx.URL("http://api", raw_path=path.encode()), headers=names)


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


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.method} {e.path}")
async def test_the_examples_of_the_document_are_what_is_answered(api: Asker, example: Example) -> None:
    answer = await api.ask(example.path, example.method)
    assert answer.status_code == example.status
    assert answer.json() == example.body


def test_examples_fit_their_schemas_and_every_answer_has_one() -> None:
    for path, item in openapi.PATHS.items():
        for status, response in item["get"]["responses"].items():
            for media in response.get("content", {}).values():
                schema = media["schema"] | {"components": openapi.DOCUMENT["components"]}
                shown = media.get("examples", {})
                for example in shown.values():
                    jsonschema.validate(example["value"], schema)
                if status in ("200", "503"):
                    assert shown, (path, status)


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
    "/",
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


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/te/v1/entities", "/te/v1/entities/device/press", "/v1/status", "/healthz"])
async def test_writes_are_refused_by_name(api: Asker, method: str, path: str) -> None:
    answer = await api.ask(path, method)
    assert answer.headers["allow"] == "GET, HEAD"
    is_problem(answer, 405, "method_not_allowed")


async def test_a_write_to_nothing_is_not_found(api: Asker) -> None:
    is_problem(await api.ask("/te/v1/nothing", "POST"), 404, "not_found")


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
    behind = tuple(replace(p, target=p.target + 5) for p in api.given.progress.partitions)
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
    assert (await api.ask("/readyz")).json() == {"ready": True, "lag": {"0": 0, "1": 0, "2": 0}}
    assert (await api.ask("/healthz")).json() == {"status": "ok"}
    api.given.progress = replace(api.given.progress, alive_at=time.monotonic() - 100)
    is_problem(await api.ask("/healthz"), 503, "stalled")


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
    for file in tmp_path.iterdir():
        file.write_bytes(b"rubbish" * 1000)
    answer = await api.ask("/te/v1/entities")
    assert "rubbish" not in json.dumps(is_problem(answer, 500, "internal"))


async def test_a_long_poll_ends_with_the_change(api: Asker, tmp_path: Path) -> None:
    path = "/te/v1/registrations/device/press"
    tag = (await api.ask(path)).headers["etag"]
    poll = asyncio.create_task(api.ask(f"{path}?wait=30", if_none_match=tag))
    await asyncio.sleep(0.3)
    assert not poll.done()
    number = partition_of(b"te", PARTITIONS)
    group = api.given.owners[number].chunk([message(99, START_MS + 9_999, "te/device/press//", b"", number)])
    replica, at = Replica(tmp_path / "replica.db"), api.given.progress.partitions[number].offset
    replica.begin("log", PARTITIONS, max_offline_s=60)
    replica.apply([(number, change) for change in changes([group], at)], [(number, at + len(group))])
    replica.close()
    parts = list(api.given.progress.partitions)
    parts[number] = replace(parts[number], offset=at + len(group))
    api.given.progress = replace(api.given.progress, partitions=tuple(parts))
    answer = await asyncio.wait_for(poll, 5)
    assert (answer.status_code, answer.json()["state"]) == (200, "removed")


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
    monkeypatch.setattr(app, "MOST_WAITING", 1)
    path = "/te/v1/registrations/device/press"
    tag = (await api.ask(path)).headers["etag"]
    first = asyncio.create_task(api.ask(f"{path}?wait=1", if_none_match=tag))
    await asyncio.sleep(0.3)
    is_problem(await api.ask(f"{path}?wait=1", if_none_match=tag), 429, "too_many_streams")
    assert (await first).status_code == 304


async def test_head_is_get_without_body(api: Asker) -> None:
    answer = await api.ask("/te/v1/entities/device/press", "HEAD")
    assert (answer.status_code, answer.headers["etag"]) == (
        200, (await api.ask("/te/v1/entities/device/press")).headers["etag"],
    )  # fmt: skip
