"""HTTP writes: what gets into the log, what is refused before, and what is told when no answer comes."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace_api import writing
from headrace_api.bodies import MOST_NESTED
from headrace_api.examples import MESSAGES, START_MS
from headrace_core.partitioner import partition_of
from headrace_schemas import validator
from tests.support.status_api import PARTITIONS, fixture
from tests.unit.api.test_app import Asker, is_problem, until

ENTITIES, PRESS = "/te/v1/entities", "/te/v1/entities/device/press"
TWIN = f"{PRESS}///twin"
SAW = {"@topic-id": "device/saw//", "@type": "child-device", "name": "Saw"}
JSON = "application/json"


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Asker]:
    yield Asker(fixture(tmp_path, [(START_MS + at, topic, payload) for at, topic, payload in MESSAGES]))


def documents(api: Asker) -> list[dict[str, Any]]:
    return [json.loads(value) for value in api.given.mail.sent]


async def test_a_write_is_a_request_document_and_what_it_did_is_shown_at_once(api: Asker) -> None:
    answer = await api.ask(ENTITIES, "POST", SAW, authorization="Bearer secret", x_other="1")
    assert (answer.status_code, answer.headers["location"]) == (201, f"{ENTITIES}/device/saw//")
    (document,) = documents(api)
    validator("request").validate(document)
    assert document == {
        "method": "POST", "path": ENTITIES, "headers": {"content-type": JSON}, "correlation": "me-1", "body": SAW,
    }  # fmt: skip
    assert (await api.ask(f"{ENTITIES}/device/saw")).json()["@id"] == "main-dev:device:saw"
    assert [e.key for e in api.given.emitted if e.topic == "outbound"] == [b"te/device/saw//"]


async def test_the_place_of_a_new_entity_is_a_url(api: Asker) -> None:
    answer = await api.ask(ENTITIES, "POST", {"@topic-id": "line/Öfen 7%//", "@type": "child-device"})
    assert answer.headers["location"] == f"{ENTITIES}/line/%C3%96fen%207%25//"
    assert (await api.ask(answer.headers["location"])).json()["@topic-id"] == "line/Öfen 7%//"


async def test_two_writers_of_one_version_do_not_overwrite_each_other(api: Asker) -> None:
    tag = (await api.ask(PRESS)).headers["etag"]
    changed = await api.ask(PRESS, "PATCH", {"@health": "device/press/service/monitor"}, if_match=tag)
    assert changed.headers["etag"] == (await api.ask(PRESS)).headers["etag"] != tag
    is_problem(await api.ask(PRESS, "PATCH", {}, if_match=tag), 412, "precondition_failed")
    is_problem(await api.ask(PRESS, "DELETE", if_match=tag), 412, "precondition_failed")
    assert (await api.ask(PRESS, "DELETE", if_match=f'"x", {changed.headers["etag"]}')).status_code == 200


@pytest.mark.parametrize(("path", "value"), [(TWIN, {"os": 2}), (f"{TWIN}/os", {"v": 2}), (f"{TWIN}/new", 1)])
async def test_twin_data_is_put_only_over_the_version_that_was_read(api: Asker, path: str, value: Any) -> None:
    is_problem(await api.ask(path, "PUT", value, if_match='"x"'), 412, "precondition_failed")
    first = await api.ask(path, "PUT", value)
    assert (await api.ask(path)).headers["etag"] == first.headers["etag"]
    assert (await api.ask(path, "PUT", value, if_match=first.headers["etag"])).status_code == 200
    assert (await api.ask(path, "DELETE", if_match=first.headers["etag"])).status_code == 204


async def test_null_is_a_body_and_no_body_is_none(api: Asker) -> None:
    is_problem(await api.ask(f"{TWIN}/os", "PUT"), 400, "invalid_payload")
    assert (await api.ask(f"{TWIN}/os", "PUT", None)).status_code == 204
    assert ["body" in document for document in documents(api)] == [False, True]
    is_problem(await api.ask(f"{TWIN}/os"), 404, "not_found")


NESTED = b"[" * (MOST_NESTED - 1) + b"]" * (MOST_NESTED - 1)
BAD = {
    "not JSON": b"{", "two values": b"{}{}", "a constant": b'{"a": NaN}', "infinite": b'{"a": 1e999}',
    "not UTF-8": b'"\xff"', "half a surrogate": b'"\\ud800"', "twice": b'{"a": 1, "b": {"c": 1, "c": 2}}',
    "too deep": b"[1, [" + NESTED + b"]]", "far too deep": b"[" * 500_000, "a long number": b"1" * 5_000,
    "a byte order mark": b"\xef\xbb\xbf{}",
}  # fmt: skip


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
async def test_what_is_not_json_never_gets_into_the_log(api: Asker, raw: bytes) -> None:
    is_problem(await api.ask(f"{TWIN}/os", "PUT", raw=raw, content_type=JSON), 400, "invalid_payload")
    assert api.given.mail.sent == []


async def test_what_is_as_deep_as_may_be_is_read_by_the_stream_processor(api: Asker) -> None:
    found: list[int] = []

    def put() -> None:  # with the stack of a thread, as there
        value = json.loads(b'{"a":' + NESTED + b"}")
        validator("request").validate({"method": "PUT", "path": "/", "headers": {}, "correlation": "1", "body": value})
        found.append(1)

    thread = threading.Thread(target=put)
    thread.start()
    thread.join()
    assert found
    answer = await api.ask(f"{TWIN}/os", "PUT", raw=b"[" + NESTED + b"]", content_type=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"content_type": "text/plain"}, {"content_type": "application/x-www-form-urlencoded"}, {"content_type": ""},
     {"content_type": "application/json; charset=utf-16"}, {"content_type": JSON, "content_encoding": "gzip"},
     {"content_type": "application/jsonx"}, {"origin": "https://example.com"}],
    ids=str,
)  # fmt: skip
async def test_a_body_is_json_by_its_type(api: Asker, headers: dict[str, str]) -> None:
    is_problem(await api.ask(f"{TWIN}/os", "PUT", raw=b"1", **headers), 415, "unsupported_media_type")
    assert api.given.mail.sent == []


@pytest.mark.parametrize("kind", [JSON, "application/merge-patch+json", "Application/JSON; charset=UTF-8", None])
async def test_json_goes_by_several_names(api: Asker, kind: str | None) -> None:
    headers = {} if kind is None else {"content_type": kind}
    assert (await api.ask(f"{TWIN}/os", "PUT", raw=b"1", **headers)).status_code == 200


async def test_a_body_is_at_most_a_mebibyte(api: Asker) -> None:
    fits, too_long = b'"%s"' % (b"x" * 1_048_574), b'"%s"' % (b"x" * 1_048_575)
    assert (await api.ask(f"{TWIN}/os", "PUT", raw=fits, content_type=JSON)).status_code == 200
    is_problem(await api.ask(f"{TWIN}/os", "PUT", raw=too_long, content_type=JSON), 413, "too_large")

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(300):
            yield b" " * 4_096

    answer = await api.client.put(f"http://api{TWIN}/os", content=parts(), headers={"content-type": JSON})
    is_problem(answer, 413, "too_large")
    assert len(api.given.mail.sent) == 1


async def test_without_kafka_nothing_is_sent_and_that_is_told(api: Asker) -> None:
    api.given.mail.closed = "writes are not possible: Kafka does not answer"
    answer = await api.ask(ENTITIES, "POST", SAW)
    assert answer.headers["retry-after"] == "1"
    assert "Kafka does not answer" in is_problem(answer, 503, "not_ready")["detail"]
    assert api.given.mail.sent == []
    assert (await api.ask(PRESS)).status_code == 200


async def test_more_writes_than_may_wait_are_refused(api: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_OPEN", 0)
    is_problem(await api.ask(ENTITIES, "POST", SAW), 503, "not_ready")


async def test_no_answer_says_what_is_known_of_the_write(api: Asker) -> None:
    api.given.mail.lost = True
    number, offset = partition_of(b"te", PARTITIONS), api.given.offset
    words = is_problem(await api.ask(ENTITIES, "POST", SAW), 504, "timeout")["detail"]
    assert f"raw-{number} at {offset}, and happens when" in words
    parts = [replace(p, source=offset) for p in api.given.progress.partitions]
    api.given.progress = replace(api.given.progress, partitions=tuple(parts))
    assert "was processed" in is_problem(await api.ask(ENTITIES, "POST", SAW), 504, "timeout")["detail"]
    api.given.offset = -1
    assert "may still happen" in is_problem(await api.ask(ENTITIES, "POST", SAW), 504, "timeout")["detail"]


async def test_writes_are_counted_by_route_and_status(api: Asker) -> None:
    await api.ask(ENTITIES, "POST", SAW)
    await api.ask(ENTITIES, "POST", SAW)
    await api.ask(f"{TWIN}/os", "PUT", raw=b"{", content_type=JSON)
    text = (await api.ask("/metrics")).text
    for route, method, status in (("entities", "POST", 201), ("entities", "POST", 409), ("twin-key", "PUT", 400)):
        assert f'headrace_api_writes_total{{method="{method}",route="{route}",status="{status}"}} 1.0' in text
    assert 'headrace_api_write_seconds_count{method="POST",route="entities"} 2.0' in text
    assert "headrace_api_writes_open 0.0" in text


async def test_a_client_that_leaves_does_not_undo_its_write(api: Asker) -> None:
    given = api.given

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(SAW).encode(), "more_body": False}

    async def send(_message: Any) -> None:
        raise OSError("the client has gone")

    scope = {
        "type": "http", "method": "POST", "path": ENTITIES, "raw_path": ENTITIES.encode(), "query_string": b"",
        "headers": [(b"content-type", JSON.encode())], "http_version": "1.1", "scheme": "http",
        "server": ("x", 1), "client": ("x", 2), "root_path": "",
    }  # fmt: skip
    with pytest.raises(OSError):
        await given.app(scope, receive, send)
    await until(lambda: len(given.mail.sent) == 1)
    assert (await api.ask(f"{ENTITIES}/device/saw")).status_code == 200
