"""A backfill as a job of its own: what it needs, its share of the capacity, and a range that stays as it was cut."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.errors import ConfigError
from headrace_spark import capacity
from headrace_spark.backfill import Backfill, Cut, Cuts
from headrace_spark.checks import check
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.jobs import backfill
from headrace_spark.jobs.backfill import own_settings
from headrace_spark.ranges import Span
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch
from tests.unit.spark.fakes import job

TIMES: dict[str, Any] = {
    "from_time": datetime(2026, 1, 1, tzinfo=UTC),
    "to_time": datetime(2026, 1, 2, tzinfo=UTC),
}


def given(**changes: Any) -> Settings:
    return job(backfill=Backfill(**{"name": "again", "alone": True, **TIMES, **changes}), job="live")


def test_it_has_its_own_name_and_the_resource_of_the_live_job() -> None:
    own = own_settings(given())
    assert (own.job, own.resource, own.weight, own.usable) == ("live.again", "live", 1, 500)
    assert own.subscribed == ["headrace.batches"]
    assert own_settings(given(weight=2, max_share=0.25)).usable == 250


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "backfill.name"),
        ({"to_time": None}, "backfill.to_time"),
        ({"from_time": None}, "backfill.from_time"),
        ({"alone": False}, "lease_store"),
        ({"max_share": 0.001}, "cost"),
    ],
)
def test_what_it_needs_is_named(changes: dict[str, Any], field: str) -> None:
    settings = given(**changes)
    if field == "cost":
        settings = job(backfill=settings.backfill, cost="per_row(2)")
    with pytest.raises(ConfigError, match=field):
        own_settings(settings)


def test_the_store_of_one_driver_is_no_store_for_two_jobs() -> None:
    with pytest.raises(ConfigError, match="lease_store: must be one that the live jobs reach too"):
        own_settings(job(backfill=given(alone=False).backfill, lease_store="embedded"))


def test_name_and_range_make_the_ledger_key() -> None:
    base = given().backfill
    assert base.run_id("live") == given(chunk_records=7, weight=3).backfill.run_id("live")
    others = [
        given(name="other").backfill,
        given(to_time=datetime(2026, 1, 3, tzinfo=UTC)).backfill,
        given(to_time=None, to_offsets={"headrace.batches-0": 5}).backfill,
    ]
    assert len({one.run_id("live") for one in (base, *others)} | {base.run_id("other")}) == 5


def test_the_first_cut_holds(tmp_path: Path) -> None:
    cuts = Cuts(Database(f"sqlite://{tmp_path}/state.db"), "live.again")
    first, second = Cut([Span("t", 0, 1, 9)], 4), Cut([Span("t", 0, 1, 99)], 4)
    assert cuts.recorded("r") is None
    assert cuts.record("r", first, 1) == first
    assert cuts.record("r", second, 2) == first
    assert cuts.recorded("r") == first


def test_a_leased_backfill_wants_at_most_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(lambda: 0)
    monkeypatch.setattr(capacity, "open_store", lambda *_, **__: store)
    made: list[capacity.Eager] = []
    monkeypatch.setattr(capacity, "Pacer", lambda resource, *_, **__: made.append(resource))
    for max_share, most in ((1.0, 0), (0.5, 500), (0.33, 300), (0.05, 50)):
        capacity.in_driver(job(lease_store="tcp://a:1", max_share=max_share))
        assert made[-1].most == most
    assert [one.config.handover for one in made] == ["wait"] * 4
    capacity.in_driver(job(lease_store="tcp://a:1", handover="inherit"))
    assert (made[-1].config.handover, made[-1].first) == ("inherit", 0), "the driver has no others beside it"
    made[1].start()
    made[1].request(5)
    assert made[1].wanted == 10
    made[0].start()
    made[0].request(5)
    assert made[0].wanted == 20


def leased(**changes: Any) -> Settings:
    dsn = "postgresql://127.0.0.1/d"
    path = {"path": "staged", "sink": dsn, "state_dsn": dsn, "master": "local[4]"}
    return job(**{"lease_store": "redis://a:1", "max_share": 0.5, "max": 1000, **path, **changes})


def test_no_request_and_no_chunk_costs_more_than_what_its_process_may_want() -> None:
    """Else its head makes the store deal out more than the share."""
    staged = leased(headroom=0.1)
    assert (staged.share_units, staged.task_units) == (500, 100), "of 50 a partition"
    assert (staged.bounds.rows, staged.chunk_bounds.rows, staged.chunk_bounds.capacity) == (450, 90, 90)
    assert leased(stage_cost="per_kib(3)").dearest.capacity == 100  # type: ignore[union-attr]
    direct = leased(max_share=0.33, path="direct")
    assert direct.bounds.rows == direct.task_units == 50, "tasks send"
    sqlite = {"sink": "sqlite:////s.db", "state_dsn": "sqlite:////s.db"}
    assert leased(max_share=0.33, path="direct", **sqlite).bounds.rows == 300, "the driver sends"
    parts = [leased(master=f"local[{tasks}]").first_units for tasks in (1, 2, 3, 100)]
    assert parts == [500, 250, 200, 50], "whole partitions, and at least one"
    whole = leased(max_share=1.0)
    assert (whole.share_units, whole.task_units, whole.chunk_bounds.rows) == (1000, 1000, 1000)


@pytest.mark.parametrize("changes", [{"max_share": 0.04}, {"max_share": 0.15}])
def test_a_share_of_less_than_a_partition_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"max_share: .*smaller factor"):
        check(leased(**changes))
    check(leased(**changes, factor=10))


class Chunks:
    """A way that notes the chunks it writes, and is told to stop in the middle of the second."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop_, self.written, self.begun = stop, list[int](), list[str]()

    def begin(self, query_id: str) -> None:
        self.begun.append(query_id)

    def done(self, batch: Batch) -> bool:
        return batch.batch_id == 1

    def write(self, frame: list[Span], batch: Batch) -> Counts:
        self.written.append(batch.batch_id)
        if len(self.written) == 2:
            self.stop_.set()
        return Counts(records=sum(map(len, frame)))

    def stop(self) -> None:
        """Nothing is held."""


def test_a_stop_ends_it_after_the_chunk_under_way_and_what_is_done_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "batch_frame", lambda _spark, _settings, part: part)
    state = {"state_dsn": f"sqlite://{tmp_path}/state.db", "sink": f"sqlite://{tmp_path}/sink.db"}
    one = backfill.Run(own_settings(job(backfill=given().backfill, **state)), "live")
    one.way.stop()
    one.ledger.prepare()
    chunks = Chunks(one.stop)
    one.way = chunks  # type: ignore[assignment]
    left = one.left(Cut([Span("t", 0, 0, 10), Span("t", 1, 5, 9)], 4))
    assert [(batch.batch_id, part) for batch, part in left] == [
        (0, [Span("t", 0, 0, 2), Span("t", 1, 5, 7)]),
        (2, [Span("t", 0, 4, 6)]),
        (3, [Span("t", 0, 6, 8)]),
        (4, [Span("t", 0, 8, 10)]),
    ]
    assert {batch.query_id for batch, _ in left} == {given().backfill.run_id("live")}
    one.write(None, left)
    assert (chunks.written, chunks.begun) == ([0, 2], [one.id])
