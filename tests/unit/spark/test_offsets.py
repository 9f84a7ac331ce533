"""Size of a micro-batch, and what the ledger remembers for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_spark import exits
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.ledger import Ledger
from headrace_spark.offsets import Drift, per_trigger
from headrace_spark.sinks.port import Batch


@pytest.mark.parametrize(
    ("capacity", "share", "trigger_ms", "mean", "partitions", "expected"),
    [
        (1000, 1.0, 5000, 10.0, 4, 400),
        (1000, 0.5, 5000, 10.0, 4, 200),
        (1000, 1.0, 5000, 9.0, 4, 444),
        (1, 1.0, 1000, 100.0, 4, 4),
        (10**9, 1.0, 60_000, 0.001, 4, 1_000_000),
    ],
)
def test_a_micro_batch_fits_its_trigger(
    capacity: int, share: float, trigger_ms: int, mean: float, partitions: int, expected: int
) -> None:
    assert per_trigger(capacity, share, trigger_ms, mean, partitions) == expected


def test_ten_micro_batches_in_a_row_that_are_twice_off_change_the_limit() -> None:
    drift = Drift(100)
    assert not any(drift.off(201) for _ in range(9))
    assert not drift.off(200)
    assert not any(drift.off(49) for _ in range(9))
    assert drift.off(49)


def test_the_mean_cost_comes_from_the_latest_hundred_micro_batches(tmp_path: Path) -> None:
    ledger = Ledger(Database(f"sqlite://{tmp_path}/s.db"), "w")
    ledger.prepare()
    assert ledger.mean_cost() is None
    ledger.commit(Batch("q", 0), Counts(records=1, cost=1_000_000), [], 0)
    for number in range(1, 101):
        assert ledger.commit(Batch("q", number), Counts(records=2, cost=5), [], number)
    assert ledger.mean_cost() == 2.5
    assert not ledger.commit(Batch("q", 7), Counts(records=2, cost=5), [], 8)
    assert ledger.totals().records == 201


def test_document_ids_are_remembered_for_the_retention_and_for_this_job(tmp_path: Path) -> None:
    database = Database(f"sqlite://{tmp_path}/s.db")
    ledger = Ledger(database, "w", seen_retention_ms=1_000)
    ledger.prepare()
    many = [f"d{number}" for number in range(1_200)]
    ledger.commit(Batch("q", 0), Counts(), many, 0)
    assert ledger.seen([*many, "other"]) == set(many)
    assert Ledger(database, "else").seen(many) == set()
    ledger.commit(Batch("q", 1), Counts(), ["new"], 1_001)
    assert ledger.seen([*many, "new"]) == {"new"}


def test_data_loss_has_its_own_exit_code() -> None:
    assert exits.of_message("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost") == exits.DATA_LOSS
    assert exits.of_message("anything else") == exits.FAILURE
