"""Sinks of mode `keyed` with real Spark and Kafka: an HTTP bulk store that misbehaves, and a Delta Lake table."""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.bulk_server import BulkServer, cut, items, status
from tests.support.spark_job import (
    PARTITIONS,
    Job,
    check_metrics,
    consume,
    documents,
    largest_window,
    produce,
    until,
    written,
)
from tests.support.streams_worker import StreamsWorker
from tests.unit.spark.fakes import document, member

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1200)]


@pytest.fixture
def store() -> Iterator[BulkServer]:
    server = BulkServer()
    yield server
    server.stop()


@pytest.fixture
def time_buffer(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    """The stream processor with the time buffer of the job's retries, and nothing else. It makes their topics."""
    buffer = {"source": "writer.retry", "target": "writer.again", "delay_ms": 60_000}
    worker = StreamsWorker(kafka, topic_prefix, tmp_path / "streams", tmp_path / "streams.log", stages="")
    worker.settings |= {"TIMELINES": json.dumps({"retries": {"partitions": 1, "buffer": buffer}})}
    worker.settings |= {"PARTITIONS": str(PARTITIONS)}
    yield worker
    worker.end()


IMPATIENT = """
from dataclasses import replace
from headrace_core.capacity.pause import PauseRule
from headrace_spark.transforms import retries

def short(self, config, *more, made=PauseRule.__init__):
    made(self, replace(config, pause_cap_ms=1_000), *more)

PauseRule.__init__ = short
retries.FIRST_DELAY_MS = 1_000
"""


def impatient(folder: Path) -> dict[str, str]:
    """The environment of a writer whose first delay and longest pause are a second each, not thirty."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(IMPATIENT)
    return {"PYTHONPATH": str(folder)}


def test_a_bulk_store_that_refuses_cuts_and_shrinks_gets_every_row_once(
    job: Callable[..., Job], store: BulkServer, time_buffer: StreamsWorker, tmp_path: Path
) -> None:
    one = job(
        sink=store.url, request_timeout_ms=30_000, max_attempts=4, charge_header="X-Charge",
        expected_cost_per_record=2.0, master="local[1,4]", max_concurrent_batches=1, headers=["traceparent"],
    )  # fmt: skip
    late = document(900, [member(1, 1.0, "ok"), member(2, 2.0, "late"), member(3, 3.0, "bad")])
    produce(one, documents(20), spread=PARTITIONS)
    assert one.run() == 2, "the topics of retries are not there"
    assert f"retry_topic: not there: {one.prefix}writer.retry, {one.prefix}writer.again" in one.log()
    time_buffer.start().wait_ready()

    # the first request is refused whole, then in part, then cut off behind its effect; of the others nothing above 16
    # rows is taken; then the driver dies before its ledger row
    store.most, store.charge = 16, 1.0
    store.script += [status(429, {"Retry-After": "1"}), items({0: 503, 3: 429}), cut]
    one.start(environment={"HEADRACE_SPARK_FAULT": "sent:0"})
    assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
    assert len(store.rows()) == 200
    assert [len(one) for one in store.requests[:7]] == [40, 40, 2, 2, 40, 20, 10]
    calls = len(store.requests)

    # the repeat sends nothing of it again, as what is done is recorded
    one.start(environment=impatient(tmp_path / "impatient"))
    until(lambda: one.metrics().get("headrace_spark_records_total") == 20, one)
    assert len(store.requests) == calls
    numbers = one.metrics()
    check_metrics(numbers)
    assert (numbers["headrace_spark_inserted_total"], numbers["headrace_spark_repeats_total"]) == (198, 2)
    assert (numbers["headrace_spark_ledger_hits"], numbers["headrace_spark_charged_total"]) == (0, 160 + 2)

    # rows that are refused for good, and rows that are not taken now
    def moody(handler, pairs):
        codes = {"late": 429, "bad": 400}
        items({n: codes[doc["metric"]] for n, (_, doc) in enumerate(pairs) if doc["metric"] in codes})(handler, pairs)

    store.always = moody
    produce(one, [late], headers={"traceparent": b"00-ab-cd-01"})
    until(lambda: one.metrics().get("headrace_spark_rows_postponed_total", 0) >= 1, one)
    assert one.metrics()['headrace_spark_dead_letters_total{reason="sink_rejected"}'] == 1
    [found] = consume(one, "dead-letter", 1)
    letter = json.loads(found.value())
    assert (letter["reason"], letter["element"], letter["payload"]) == ("sink_rejected", 2, late.decode())
    assert dict(found.headers())["traceparent"] == b"00-ab-cd-01"

    # a time buffer brings it back when it is due, again and again, until the store takes it
    until(lambda: one.metrics().get('headrace_spark_again_total{round="1"}') == 1, one)
    store.always = None
    until(lambda: "late" in {row[1] for row in store.rows()}, one)
    assert [row[1] for row in store.rows() if row[1] in ("ok", "late", "bad")] == ["late", "ok"]
    traced = [document for _, document in store.documents.values() if "headers" in document]
    assert {document["metric"]: document["headers"] for document in traced} == {
        name: {"traceparent": "00-ab-cd-01"} for name in ("ok", "late")
    }
    rounds = written(one, "writer.again")
    assert rounds == written(one, "writer.retry") >= 1
    until(lambda: one.metrics().get("headrace_spark_records_total") == 21 + rounds, one)
    numbers = one.metrics()
    check_metrics(numbers)
    assert numbers["headrace_spark_records_postponed_total"] == rounds
    found = [(dict(message.headers()), message.timestamp()[1]) for message in consume(one, "writer.again", rounds)]
    found.sort(key=lambda one: int(one[0]["hr-round"]))
    for round_, (headers, released_at) in enumerate(found, 1):
        assert (headers["hr-round"], headers["hr-left"]) == (b"%d" % round_, b"[[1,1]]")
        assert headers["hr-source"].startswith(f"{one.prefix}batches-".encode())
        assert headers["tl-source"].startswith(f"{one.prefix}writer.retry-".encode())
        assert 1_700_000_000_000 < int(headers["deliver-at"]) <= released_at
    assert time_buffer.terminate() == 0
    assert written(one, "dead-letter") == 1
    assert 0 < largest_window(one) <= 400

    # who may not write at all has a wrong job file
    store.always = status(401)
    produce(one, documents(1, 50))
    assert one.wait() == 2, one.log()[-4000:]
    assert "401" in one.log()


@pytest.mark.soak
def test_tasks_send_side_by_side_and_lanes_in_order_over_the_death_of_workers(
    job: Callable[..., Job], store: BulkServer
) -> None:
    one = job(sink=store.url, request_timeout_ms=30_000, available_now=True, max=10, on_exhausted="fail")
    produce(one, documents(40), spread=PARTITIONS)
    store.script += [status(429, {"Retry-After": "1"}), cut]
    assert one.run(environment={"HEADRACE_SPARK_FAULT": "task:0:0:0,task:0:1:0"}) == 0, one.log()[-4000:]
    assert len(store.rows()) == 400
    assert 0 < largest_window(one) <= 400
    totals = dict(one.sql("state.db", "SELECT name, value FROM hr_total"))
    assert totals["rows"] == totals["inserted"] + totals["repeats"] == 400
    again = [name for names in store.requests for name in names]
    assert len(again) - 400 <= 10 * (2 + 2 * 4), "of what died at most what was at work goes twice"

    two = job(
        one.folder / "lanes", job="lanes", sink=store.url.replace("measurements", "lanes"), mode="lanes",
        lane_mode="backlog", available_now=True, max=30,
    )  # fmt: skip
    store.documents.clear()
    store.headers.clear()
    store.script += [status(503), cut]
    assert two.run(environment={"HEADRACE_SPARK_FAULT": "task:0:0:0"}) == 0, two.log()[-4000:]
    assert len(store.rows()) == 400
    keys = [found["Idempotency-Key"] for found in store.headers]
    for lane in range(PARTITIONS):
        own = [key for key in keys if key.startswith(f"{two.prefix}batches-{lane}:")]
        once = [key for key, after in itertools.pairwise([*own, ""]) if key != after]
        places = [tuple(map(int, key.split(":")[1:])) for key in once]
        assert places == sorted(set(places)), "one after the other"
    assert 0 < largest_window(two) <= 400


def test_a_delta_table_gets_a_micro_batch_once_over_a_death_between_commit_and_ledger(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    table = tmp_path / "table"
    one = job(
        sink=f"delta:{table}", cost="per_kib(4) + per_request(10)", max_bytes=6_000, available_now=True,
        expected_cost_per_record=2.0,
    )  # fmt: skip
    produce(one, documents(30))
    assert one.run(environment={"HEADRACE_SPARK_FAULT": "sent:0"}) == -signal.SIGKILL, one.log()[-4000:]
    delta = DeltaTable(table)
    before = delta.version()
    assert before > 1, "several commits"
    assert one.sql("state.db", "SELECT count(*) FROM hr_batch_ledger") == [(0,)]
    spent = one.sql("state.db", "SELECT count(*) FROM hr_dispatch")

    assert one.run() == 0, one.log()[-4000:]
    delta.update_incremental()
    found = delta.to_pyarrow_table()
    assert found.num_rows == 300
    assert len(set(zip(*(found.column(name).to_pylist() for name in ("metric", "time_ms")), strict=True))) == 300
    total = dict(one.sql("state.db", "SELECT name, value FROM hr_total"))
    assert (total["rows"], total["inserted"], total.get("repeats", 0), total["records"]) == (300, 300, 0, 30)
    query = one.sql("state.db", "SELECT query_id, max(batch_id) FROM hr_batch_ledger")[0]
    assert delta.transaction_version(query[0]) == query[1]
    assert delta.version() == before
    assert one.sql("state.db", "SELECT count(*) FROM hr_dispatch") == spent
    assert largest_window(one) <= 400
