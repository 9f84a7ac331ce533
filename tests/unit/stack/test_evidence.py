"""How evidence is read: metrics, tables, records."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import httpx
import pytest

from headrace import evidence
from headrace.endpoints import ARCHIVE
from headrace.evidence import Mark, Unreachable, Written
from tests.support.dry_run import FakeRecord

METRICS = """# HELP headrace_stage Stage.gauges
# TYPE headrace_stage gauge
headrace_stage{name="in",partition="0",stage="registration"} 5.0
headrace_stage{name="in",partition="1",stage="registration"} 7.0
headrace_stage{name="refused.id_in_use",partition="0",stage="registration"} 1.0
headrace_stage{name="in",partition="0",stage="batching"} 1e+06
headrace_stage_lag{partition="0",stage="batching"} 3.0
headrace_bridge_in_flight 2.0
"""


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(url: str, timeout: float) -> httpx.Response:
        assert timeout > 0
        status = 200 if url == "http://up/metrics" else 503
        return httpx.Response(status, text=METRICS, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)


@pytest.mark.usefixtures("metrics")
def test_gauges_are_summed_over_the_partitions():
    assert evidence.gauges("http://up") == {
        "registration": {"in": 12, "refused.id_in_use": 1},
        "batching": {"in": 1_000_000, "lag": 3},
    }
    assert ("headrace_bridge_in_flight", {}, 2.0) in list(evidence.samples("http://up"))


@pytest.mark.usefixtures("metrics")
def test_a_service_that_does_not_answer_well_is_unreachable():
    with pytest.raises(Unreachable, match="http://down"):
        evidence.gauges("http://down")


def test_before_the_writer_first_ran_there_is_nothing(tmp_path: Path):
    sqlite3.connect(tmp_path / "empty.db").close()
    for path in (tmp_path / "none.db", tmp_path / "empty.db"):
        assert evidence.stored(path) == Written()
        assert (evidence.dispatches(path, 0), evidence.last_dispatch(path)) == ([], 0)


def test_rows_totals_and_dispatches_are_read_from_the_tables(tmp_path: Path):
    path = tmp_path / "h.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE hr_total (job TEXT, name TEXT, value INTEGER)")
        db.execute("CREATE TABLE measurements (source TEXT)")
        db.execute("CREATE TABLE hr_dispatch (at_ns INTEGER, cost INTEGER, rows INTEGER)")
        totals = [("writer", "rows", 2), ("archive", "rows", 3), ("writer", "cost", 9)]
        db.executemany("INSERT INTO hr_total VALUES (?, ?, ?)", totals)
        db.executemany("INSERT INTO measurements VALUES (?)", [("x",), ("y",)])
        db.executemany("INSERT INTO hr_dispatch VALUES (?, ?, ?)", [(10, 5, 5), (20, 6, 6), (30, 7, 7)])
        db.execute("CREATE TABLE archive (source TEXT)")
        db.execute("INSERT INTO archive VALUES ('x')")
    assert evidence.stored(path) == Written({"rows": 2, "cost": 9}, 2)
    assert evidence.stored(path, ARCHIVE) == Written({"rows": 3}, 1)
    assert evidence.last_dispatch(path) == 3
    assert evidence.dispatches(path, after=1) == [(20, 6), (30, 7)]


def test_ticks_and_requests_are_no_messages():
    kinds = [[("kind", b"tick")], [("kind", b"flush")], [("kind", b"request")], [("topic", b"te/a///m/x")]]
    found = evidence.count({"raw": [FakeRecord(None, b"{}", headers, 1) for headers in kinds]})
    assert (found.raw, found.ticks, found.requests) == (1, 2, 1)


def test_a_record_with_an_id_that_came_before_is_a_repeat():
    letter = FakeRecord(b"te", b'{"reason":"late"}', [("id", b"batching:0:1:0"), ("stage", b"batching")], 1)
    found = evidence.count({"dead-letter": [letter, letter]})
    assert found.letters == {("batching", "late"): 1}
    assert found.repeats == {"dead-letter": 1}


def test_numbers_and_booleans_are_leaves_and_text_is_none():
    assert evidence.leaves({"a": 1, "b": {"c": 2.5, "d": [True, "text", 3]}}) == 4
    assert evidence.leaves("text") == evidence.leaves(None) == 0
    assert evidence.leaves(7) == 1


def test_a_mark_counts_the_records_of_a_topic():
    at = Mark(ends={("raw", 0): 3, ("raw", 1): 4, ("routed", 0): 9})
    assert at.records("raw") == 7
