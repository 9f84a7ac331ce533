"""What Spark tells of a micro-batch, as metrics."""

from __future__ import annotations

from typing import Any

from headrace_spark.observed import Observed, observed

PROGRESS: dict[str, Any] = {
    "inputRowsPerSecond": 12.5,
    "processedRowsPerSecond": 20.0,
    "durationMs": {"addBatch": 1500, "walCommit": 20},
    "sources": [
        {"endOffset": {"t": {"0": 10, "1": 7}}, "latestOffset": {"t": {"0": 50, "1": 7, "2": 20}}, "numInputRows": 17}
    ],
}


def samples(found: Observed) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name.removeprefix("headrace_spark_"), tuple(sample.labels.values())): sample.value
        for family in found.collect()
        for sample in family.samples
    }


def test_lag_and_phases_are_told_by_partition() -> None:
    told = samples(observed(PROGRESS, 123.0))
    assert told["offsets_behind_latest", ("t", "0")] == 40
    assert told["offsets_behind_latest", ("t", "1")] == 0
    assert told["offsets_behind_latest", ("t", "2")] == 20
    assert (told["offsets_behind_latest_max", ()], told["offsets_behind_latest_mean", ()]) == (40, 20)
    assert told["lag_seconds", ()] == 3.0
    assert told["batch_phase_seconds", ("addBatch",)] == 1.5
    assert (told["input_rows_per_second", ()], told["processed_rows_per_second", ()]) == (12.5, 20.0)
    assert told["last_commit_time_seconds", ()] == 123.0


def test_offsets_may_be_text_and_anything_may_be_missing() -> None:
    text = {"sources": [{"endOffset": '{"t":{"0":1}}', "latestOffset": '{"t":{"0":3}}'}], "inputRowsPerSecond": "NaN"}
    told = samples(observed(text, 0.0))
    assert told["offsets_behind_latest", ("t", "0")] == 2
    assert told["lag_seconds", ()] == told["input_rows_per_second", ()] == 0.0
    assert samples(observed({}, 0.0)) == samples(Observed())
