"""What a scrape shows, and when the job is unhealthy."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from headrace_spark.counts import Counts, from_items
from headrace_spark.metrics import Collector, MetricsServer, Progress
from headrace_spark.observed import Observed


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def progress() -> Progress:
    return Progress(1_000, Clock())


@pytest.fixture
def server(progress: Progress) -> Iterator[MetricsServer]:
    totals = Counts(rows=5, inserted=4, repeats=1, dead_letters={"not_json": 2})
    server = MetricsServer(Collector(lambda: totals, progress, 400, lambda: 40), progress, 0)
    server.start()
    yield server
    server.stop()


def get(server: MetricsServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_scrape_shows_the_totals_and_target_beside_achieved_rate(server: MetricsServer, progress: Progress) -> None:
    progress.max_offsets = 160
    status, text = get(server, "/metrics")
    assert status == 200
    lines = set(text.splitlines())
    assert {
        "headrace_spark_rows_total 5.0",
        "headrace_spark_inserted_total 4.0",
        'headrace_spark_dead_letters_total{reason="not_json"} 2.0',
        "headrace_spark_target_rate 400.0",
        "headrace_spark_max_offsets_per_trigger 160.0",
        "headrace_spark_achieved_rate 40.0",
    } <= lines
    assert get(server, "/else")[0] == 404


def test_a_query_that_stands_still_is_unhealthy_in_a_micro_batch_and_between_two(
    server: MetricsServer, progress: Progress
) -> None:
    clock = progress._clock_ns
    assert isinstance(clock, Clock)

    def nearly_over() -> None:
        clock.now += 999 * 10**6
        assert get(server, "/healthz") == (200, "ok\n")

    clock.now = 10**12
    assert get(server, "/healthz") == (200, "ok\n")
    for sign in (progress.start, lambda: progress.begin(3), progress.alive, lambda: progress.end(2.5, hit=True)):
        sign()
        nearly_over()
    clock.now += 10**6
    assert get(server, "/healthz") == (503, "no progress\n")
    progress.observe(Observed(ended=5.0))
    nearly_over()
    clock.now += 10**6
    assert get(server, "/healthz")[0] == 503
    progress.stop()
    assert get(server, "/healthz")[0] == 200
    progress.alive()
    assert not progress.running
    assert (progress.batch_id, progress.ledger_hits, progress.batch_seconds) == (3, 1, 2.5)


def test_counts_survive_the_way_through_the_ledger() -> None:
    counts = Counts(records=3, rows=9, dead_letters={"schema": 1, "not_utf8": 2})
    assert from_items(counts.items()) == counts
    assert from_items({}) == Counts()


def test_the_job_is_ready_while_its_query_runs_and_healthy_before(server: MetricsServer, progress: Progress) -> None:
    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz") == (503, "the query is not started\n")
    progress.start()
    assert get(server, "/readyz") == (200, "ok\n")
