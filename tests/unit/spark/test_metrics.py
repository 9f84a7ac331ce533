"""What a scrape shows, and when the job is unhealthy."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from headrace_spark.counts import NAMES, Counts, from_items
from headrace_spark.database import StateDown
from headrace_spark.metrics import RESTARTS, Collector, MetricsServer, Progress, silence_ms
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


def scraped(server: MetricsServer) -> dict[str, float]:
    """All numbers of a scrape, by name and labels, without the prefix."""
    status, text = get(server, "/metrics")
    assert status == 200
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix("headrace_spark_"): float(value) for name, _, value in lines}


def test_every_number_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RESTARTS, "40")
    progress = Progress(1_000, Clock())
    progress.restarts += 1
    progress.max_offsets = 42
    progress.begin(43)
    progress.end(44.5, hit=True)
    progress.end(45.5, hit=True)
    totals = Counts(**{name: number for number, name in enumerate(NAMES, 100)})
    totals.dead_letters, totals.rounds = {"schema": 201, "too_large": 202}, {"1": 203, "2": 204}
    server = MetricsServer(Collector(lambda: totals, progress, 46, lambda: 47), progress, 0)
    server.start()
    try:
        found = scraped(server)
    finally:
        server.stop()
    assert {name: found[f"{name}_total"] for name in NAMES} == {name: n for n, name in enumerate(NAMES, 100)}
    expected = {
        "up": 1, "restarts": 41, "max_offsets_per_trigger": 42, "batch_id": 43, "batch_seconds": 45.5, "ledger_hits": 2,
        "target_rate": 46, "achieved_rate": 47, "rows_per_request": totals.rows / totals.requests,
        'dead_letters_total{reason="schema"}': 201, 'dead_letters_total{reason="too_large"}': 202,
        'again_total{round="1"}': 203, 'again_total{round="2"}': 204,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_while_the_state_store_is_down_its_totals_are_away_and_all_else_is_told(progress: Progress) -> None:
    down = [True]

    def totals() -> Counts:
        if down[0]:
            raise StateDown("away")
        return Counts(rows=5)

    progress.observe(Observed(ended=9.0, behind={("t", "0"): 7}))
    server = MetricsServer(Collector(totals, progress, 400, lambda: 40), progress, 0)
    server.start()
    try:
        found = scraped(server)
        assert (found["up"], found["target_rate"], found["offsets_behind_latest_max"]) == (1, 400, 7)
        assert not {name for name in found if name.startswith(("rows", "dead_letters"))}
        down[0] = False
        assert scraped(server)["rows_total"] == 5
    finally:
        server.stop()


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


@pytest.mark.parametrize(("trigger_ms", "limit_ms"), [(5_000, 25_000), (20_000, 100_000), (100, 25_000)])
def test_it_may_be_silent_for_five_triggers_and_longer_where_they_are_short(trigger_ms: int, limit_ms: int) -> None:
    """Spark tells every 10 s that there is no input."""
    assert silence_ms(trigger_ms) == limit_ms


def test_counts_survive_the_way_through_the_ledger() -> None:
    counts = Counts(records=3, rows=9, dead_letters={"schema": 1, "not_utf8": 2})
    assert from_items(counts.items()) == counts
    assert from_items({}) == Counts()


def test_the_job_is_ready_while_its_query_runs_and_healthy_before(server: MetricsServer, progress: Progress) -> None:
    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz") == (503, "the query is not started\n")
    progress.start()
    assert get(server, "/readyz") == (200, "ok\n")
