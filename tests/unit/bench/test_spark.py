"""The bench of the writer measures with what spark-writer.md 13 names, and computes its figures right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.spark import PARTS, figures
from bench.spark.figures import last_tenth
from bench.spark.input import BYTES, MEASUREMENTS, document
from bench.spark.process import Run, Servers, per_trigger
from bench.spark.rivals import rows_of
from headrace_spark import offsets
from headrace_spark.checks import check
from headrace_spark.lanes import pack
from headrace_spark.settings import Settings
from headrace_spark.transforms.decode import decode
from headrace_spark.transforms.records import Record, report
from tests.unit.spark.fakes import job


def test_a_record_has_50_measurements_of_150_bytes_each_a_row_of_its_own() -> None:
    found = [document(number) for number in range(40)]
    for value in found:
        decode(value, 1_000_000)
        members = json.loads(value)["members"]
        assert {len(json.dumps(one, separators=(",", ":"))) for one in members} == {BYTES}
    rows = rows_of(found)
    assert len(rows) == len({row.id for row in rows}) == 40 * MEASUREMENTS


@pytest.mark.parametrize(("limit", "cost", "capacity"), [(1000, 1, 10**9), (400, 100, 2_000), (37, 50, 2_000)])
def test_the_settings_make_micro_batches_of_the_wanted_size(limit: int, cost: float, capacity: int) -> None:
    told = per_trigger(limit, cost, capacity)
    settings = job(cost="per_row(1)", **told)
    check(settings)
    assert offsets.per_trigger(settings.usable, settings.share, settings.trigger_ms, cost, 2) == limit


def test_every_part_is_there() -> None:
    assert all(callable(getattr(figures, name)) for name in PARTS)


def test_the_plain_part_packs_all_that_it_counts() -> None:
    [found] = list(figures.plain(Servers(Path(), "", ""), True))
    assert found.value > 0
    settings = Settings(**figures.JOB, **figures.EMPTY, max=1000, capacity=10**9, expected_cost_per_record=1.0)
    reports = [report(Record("t", 0, n, 1, None, document(n), []), settings.max_document_bytes) for n in range(3)]
    assert sum(len(one.request.rows) for one in pack(reports, reports, settings)) == 3 * MEASUREMENTS


def test_rates_leave_out_the_first_micro_batch() -> None:
    run = Run(ends=[(100.0, 500), (102.0, 300), (103.0, 300)])
    assert run.rows == 1100
    assert run.rate == 200
    assert run.batch_seconds == [2.0, 1.0]


def test_the_last_tenth_is_of_staging_alone() -> None:
    staging = [(at * 10, 0, 10) for at in range(9)] + [(160, 0, 10)]
    merging = [(500, 0, 100)]
    assert last_tenth(Run(sent=[*staging, *merging]), 100) == 0.5
