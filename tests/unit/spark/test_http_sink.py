"""The HTTP bulk sink against a real server that refuses, cuts, hangs and floods."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import ConfigError
from headrace_spark.sinks import http
from headrace_spark.sinks.answers import Answer
from headrace_spark.sinks.callables import Context, Result
from headrace_spark.sinks.http import BulkSink
from headrace_spark.sinks.port import SinkDown
from tests.support.bulk_server import BulkServer, cut, cut_before, cut_within, items, silent, status
from tests.unit.spark.test_bulk import rows


@pytest.fixture
def store() -> Iterator[BulkServer]:
    server = BulkServer()
    yield server
    server.stop()


def send(store: BulkServer, count: int = 3, within_s: float = 60, **more: Any) -> Answer:
    sink = BulkSink(store.url, **more)
    try:
        context = Context("q", 0, -1, 1, "req", time.monotonic_ns() + int(within_s * 1e9), threading.Event())
        return sink.send(rows(count), context)
    finally:
        sink.close()


def became(found: Answer) -> list[str]:
    return [one.became for one in found.verdicts]


def test_rows_are_stored_and_a_repeat_has_no_effect(store: BulkServer) -> None:
    assert became(send(store)) == ["inserted"] * 3
    assert became(send(store)) == ["repeat"] * 3
    assert len(store.rows()) == 3
    assert store.headers[0]["Content-Type"] == "application/x-ndjson"
    assert store.headers[0]["X-Request-Id"] == "req"


@pytest.mark.parametrize("trouble", [cut, cut_before, cut_within])
def test_a_connection_that_is_lost_leaves_every_row_unknown(store: BulkServer, trouble: Any) -> None:
    store.script.append(trouble)
    assert became(send(store)) == ["unknown"] * 3
    assert set(became(send(store))) <= {"inserted", "repeat"}
    assert len(store.rows()) == 3


def test_a_time_out_leaves_every_row_unknown(store: BulkServer) -> None:
    store.script.append(silent)
    assert became(send(store, timeout_ms=1_000)) == ["unknown"] * 3


def test_an_answer_drop_by_drop_ends_at_the_deadline(store: BulkServer) -> None:
    def drops(handler: Any, _: Any) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not store.release.wait(0.05):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return

    store.script.append(drops)
    found = send(store, within_s=0.5)
    assert became(found) == ["unknown"] * 3
    assert "too long" in found.verdicts[0].detail


def test_an_answer_without_end_is_not_read_to_the_end(store: BulkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER", 1000)
    store.script.append(status(200, body=b" " * 100_000))
    assert became(send(store)) == ["unknown"] * 3


def test_a_store_that_is_not_there_is_down() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sink = BulkSink(f"http://127.0.0.1:{port}/_bulk")
    with pytest.raises(SinkDown, match="no connection"):
        sink.send(rows(1), Context("q", 0, -1, 1, "req", time.monotonic_ns() + 60 * 10**9, threading.Event()))


def test_refusals_and_their_wait_are_read(store: BulkServer) -> None:
    store.script += [status(429, {"Retry-After": "3"}), items({1: 503}, {"Retry-After": "4"}), status(413)]
    found = send(store)
    assert (became(found), found.busy, found.retry_after_ms) == (["refused"] * 3, True, 3000)
    found = send(store)
    assert (became(found), found.busy, found.retry_after_ms) == (["inserted", "refused", "inserted"], True, 4000)
    assert send(store).too_large


def test_a_charge_is_read_where_it_is_configured(store: BulkServer) -> None:
    store.charge = 2.5
    assert send(store).charge is None
    assert send(store, charge_header="X-CHARGE").charge == 8


def test_a_secret_comes_from_a_file(store: BulkServer, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("ApiKey abc\n")
    send(store, authorization_file=str(file))
    assert store.headers[0]["Authorization"] == "ApiKey abc"
    file.write_text("a\nb")
    with pytest.raises(ConfigError, match="authorization_file"):
        send(store, authorization_file=str(file))
    with pytest.raises(ConfigError, match="authorization_file"):
        send(store, authorization_file=str(tmp_path / "none"))


def test_a_store_that_refuses_all_of_it_is_an_error_of_configuration(store: BulkServer) -> None:
    store.script.append(status(401))
    with pytest.raises(ConfigError, match=r"^sink: .*401"):
        send(store)


def whole(store: BulkServer, count: int = 3, **more: Any) -> Result:
    sink = BulkSink(store.url, **more)
    try:
        context = Context("q", 0, 1, 1, "t-1:0:9:0", time.monotonic_ns() + 60_000_000_000, threading.Event())
        return sink.write(rows(count), context)
    finally:
        sink.close()


def test_a_request_of_a_lane_is_taken_whole_and_known_by_its_id(store: BulkServer) -> None:
    store.charge = 2.0
    assert whole(store, charge_header="X-Charge") == Result(charge=6)
    assert whole(store) == Result(), "a repeat has no effect"
    assert len(store.rows()) == 3
    assert store.headers[0]["Idempotency-Key"] == "t-1:0:9:0"


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (status(429, {"Retry-After": "2"}), Result("retry", "status 429", 2000, busy=True)),
        (status(503), Result("retry", "status 503", busy=True)),
        (status(503, {"RateLimit-Reset": "3"}), Result("retry", "status 503", 3000, busy=True)),
        (status(429, {"X-RateLimit-Reset": "1900000000"}), Result("retry", "status 429", busy=True)),
        (status(500), Result("retry", "status 500")),
        (status(408), Result("retry", "status 408")),
        (status(413), Result("reject", "status 413: ")),
        (status(422, body=b"unit"), Result("reject", "status 422: unit")),
        (status(204), Result()),
        (status(200, body=b"taken"), Result()),
        (items({1: 429, 2: 400}), Result("retry", '1 of 3 items: status 429: {"type": "told_to"}', busy=True)),
        (items({1: 500}), Result("retry", '1 of 3 items: status 500: {"type": "told_to"}')),
        (items({1: 400, 2: 409}), Result("reject", '1 of 3 items: status 400: {"type": "told_to"}')),
        (items({1: 409}), Result()),
    ],
)
def test_what_an_answer_says_of_a_request_as_a_whole(store: BulkServer, step: Any, expected: Result) -> None:
    store.script.append(step)
    assert whole(store) == expected


@pytest.mark.parametrize("number", [301, 401, 403, 404])
def test_an_answer_that_no_request_changes_is_a_wrong_job_file_for_lanes_too(store: BulkServer, number: int) -> None:
    store.script.append(status(number))
    with pytest.raises(ConfigError, match=f"status {number}"):
        whole(store)


def test_a_request_of_a_lane_whose_outcome_is_unknown_is_told_so(store: BulkServer) -> None:
    for trouble in (cut, cut_before, cut_within):
        store.script.append(trouble)
        with pytest.raises(SinkDown):
            whole(store)
    assert whole(store).outcome == "done"
