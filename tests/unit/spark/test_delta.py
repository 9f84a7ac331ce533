"""Delta Lake: each micro-batch once, over kill -9 between commit and ledger, and against another writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace_core.errors import ConfigError
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.delta_writing import DeltaWriter
from headrace_spark.ledger import Ledger
from headrace_spark.patience import Patience
from headrace_spark.sinks.delta import DeltaSink
from headrace_spark.sinks.port import Batch, Outcome, SinkDown
from headrace_spark.transforms.records import Report
from headrace_spark.transforms.rows import Request, Row
from tests.unit.spark.fakes import AtOnce, Killed, Outbox, document, job, member, reports


class Watched(DeltaSink):
    """Can be killed before or after the commit of the n-th request, or before the ledger is done with it."""

    def __init__(self, uri: str, fail: dict[tuple[str, int], BaseException]) -> None:
        super().__init__(uri)
        self._fail, self._writes = fail, 0

    def write(self, batch: Batch, request: Request) -> Outcome:
        self._writes += 1
        self._maybe("before")
        outcome = super().write(batch, request)
        self._maybe("after")
        return outcome

    def _maybe(self, moment: str) -> None:
        error = self._fail.pop((moment, self._writes), None)
        if error is not None:
            raise error


class Bench:
    """`write` builds a new writer and a new sink, as a new process does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.uri = str(folder / "table")
        self.fail: dict[tuple[str, int], BaseException] = {}
        self.ledger = Ledger(Database(f"sqlite://{folder}/state.db"), "w")
        self.ledger.prepare()
        self.slept: list[float] = []

    def writer(self) -> DeltaWriter:
        # a KiB a request: the rows of one document make several commits
        settings = job(sink=f"delta:{self.uri}", cost="per_kib(1) + per_request(2)", max_bytes=300)
        sink = Watched(self.uri, self.fail)
        sink.prepare()
        patience = Patience(settings.sink_down_max_ms, sleep=self.slept.append)
        return DeltaWriter(settings, self.ledger, sink, Outbox(), AtOnce(), patience)

    def write(self, batch: int, found: Sequence[Report]) -> Counts:
        writer = self.writer()
        return Counts() if writer.done(Batch("q", batch)) else writer.write(Batch("q", batch), found)

    def rows(self) -> list[dict[str, Any]]:
        rows = pa.table(DeltaTable(self.uri).to_pyarrow_table()).to_pylist()
        return sorted(rows, key=lambda row: (row["source"], row["metric"], row["time_ms"]))

    def spent(self) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.folder / "state.db") as db:
            return db.execute("SELECT cost, rows FROM hr_dispatch").fetchall()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "bench")


def mixed(first: int = 0) -> list[Report]:
    """Rows of two documents; the second replaces one of the first."""
    return reports(
        document(first + 1, [member(t, {"a": t, "on": True}, "env") for t in range(first, first + 5)]),
        document(first + 2, [member(first, {"a": 99}, "env")], closed_at=60),
    )


def version(bench: Bench) -> int:
    return DeltaTable(bench.uri).version()


def test_a_micro_batch_is_several_commits_and_the_last_carries_its_transaction(bench: Bench) -> None:
    counts = bench.write(0, mixed())
    assert (counts.rows, counts.inserted, counts.replaced, counts.repeats) == (11, 10, 0, 1)
    assert counts.requests > 1
    assert version(bench) == counts.requests
    assert (counts.cost, bench.spent()[0][0]) == (3 * counts.requests, 3)
    table = DeltaTable(bench.uri)
    assert (table.transaction_version("q"), table.transaction_version("other")) == (0, None)
    table.load_as_version(table.version() - 1)
    assert table.transaction_version("q") is None
    assert [row["value"] for row in bench.rows() if row["metric"] == "env.a"] == [99, 1, 2, 3, 4]
    assert bench.rows()[5] == {
        "source": "te/device/a//", "metric": "env.on", "time_ms": 0, "value": 1.0, "boolean": True, "closed_at": 50,
        "batch": f"{1:032x}",
    }  # fmt: skip


def test_a_row_replaces_another_only_with_a_higher_version(bench: Bench) -> None:
    bench.write(0, reports(document(5, [member(1, 1)], closed_at=10)))
    older = bench.write(1, reports(document(6, [member(1, 2)], closed_at=9)))
    tie_low = bench.write(2, reports(document(4, [member(1, 3)], closed_at=10)))
    tie_high = bench.write(3, reports(document(7, [member(1, 4), member(2, 5)], closed_at=10)))
    assert [(one.inserted, one.replaced, one.repeats) for one in (older, tie_low, tie_high)] == [
        (0, 0, 1), (0, 0, 1), (1, 1, 0),
    ]  # fmt: skip
    assert [row["value"] for row in bench.rows()] == [4.0, 5.0]


@pytest.mark.parametrize(("moment", "number"), [(m, n) for m in ("before", "after") for n in (1, 2, 3)])
def test_killed_around_a_commit_and_repeated_each_request_is_there_once(
    bench: Bench, tmp_path: Path, moment: str, number: int
) -> None:
    clean = Bench(tmp_path / "clean")
    expected = clean.write(0, mixed())
    assert expected.requests == 3
    bench.fail = {(moment, number): Killed()}
    with pytest.raises(Killed):
        bench.write(0, mixed())
    assert bench.write(0, list(reversed(mixed()))) == expected
    assert bench.rows() == clean.rows()
    assert version(bench) == version(clean), "no request was committed twice"
    tries = expected.requests + (moment == "before")
    assert len(bench.spent()) == tries, "what was committed is not paid again"


def test_killed_between_the_last_commit_and_the_ledger_nothing_is_written_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Bench(tmp_path / "clean").write(0, mixed())
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            bench.write(0, mixed())
    before, spent = version(bench), bench.spent()
    assert not bench.ledger.done(Batch("q", 0))
    assert bench.write(0, mixed()) == expected, "with exact numbers, from the table's history"
    assert (version(bench), bench.spent()) == (before, spent)
    assert bench.ledger.done(Batch("q", 0))


def test_without_history_the_rows_are_right_and_count_as_repeats(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.fail = {("before", 3): Killed()}
    with pytest.raises(Killed):
        bench.write(0, mixed())
    monkeypatch.setattr(DeltaTable, "history", lambda *_: [])
    counts = bench.write(0, mixed())
    assert len(bench.rows()) == 10
    assert counts.rows == counts.inserted + counts.repeats == 11
    assert bench.write(0, mixed()) == Counts()


def test_another_plan_of_the_same_micro_batch_loses_nothing(bench: Bench) -> None:
    bench.fail = {("before", 2): Killed()}
    with pytest.raises(Killed):
        bench.write(0, mixed())
    settings = job(sink=f"delta:{bench.uri}", cost="per_kib(1)", max_bytes=100_000)  # one request now, not three
    sink = DeltaSink(bench.uri)
    counts = DeltaWriter(settings, bench.ledger, sink, Outbox(), AtOnce(), Patience(1)).write(Batch("q", 0), mixed())
    assert counts.requests == 1
    assert len(bench.rows()) == 10


def request(*metrics: str) -> Request:
    return Request("-".join(metrics), [Row("te", name, 1, 1, "0" * 32, 1.0, False) for name in metrics], 1)


def stale(bench: Bench) -> DeltaSink:
    """A sink that has looked at the table already."""
    sink = DeltaSink(bench.uri)
    sink.prepare()
    sink.plan([request("a")])
    assert sink.outcomes(Batch("q", 0)) == {}
    return sink


class Slow(DeltaSink):
    """Between reading the table and its commit another one comes first."""

    other: Any = None

    def _merge(self, table: DeltaTable, batch: Batch, request: Request) -> Outcome:
        other, self.other = self.other, None
        if other is not None:
            other()
        return super()._merge(table, batch, request)


def test_after_a_conflict_with_the_same_micro_batch_it_is_done(bench: Bench) -> None:
    rival, slow = stale(bench), Slow(bench.uri)
    slow.plan([request("a")])
    slow.other = lambda: rival.write(Batch("q", 0), request("a"))
    assert slow.write(Batch("q", 0), request("a")) == Outcome(inserted=1), "with the numbers of the one that was first"
    assert version(bench) == 1
    assert len(bench.rows()) == 1


def test_after_a_conflict_with_something_else_it_is_tried_again(bench: Bench) -> None:
    rival, slow = stale(bench), Slow(bench.uri)
    rival.plan([request("b")])
    slow.plan([request("a")])
    slow.other = lambda: rival.write(Batch("p", 7), request("b"))
    with pytest.raises(SinkDown, match="conflict"):
        slow.write(Batch("q", 0), request("a"))
    assert slow.write(Batch("q", 0), request("a")) == Outcome(inserted=1)
    assert len(bench.rows()) == 2


class Lossy(DeltaSink):
    """The answer to its first commit is lost."""

    lost = 0

    def _merge(self, table: DeltaTable, batch: Batch, request: Request) -> Outcome:
        outcome = super()._merge(table, batch, request)
        self.lost += 1
        if self.lost == 1:
            raise OSError("timed out")
        return outcome


def test_a_commit_whose_answer_was_lost_is_found_and_not_made_again(bench: Bench) -> None:
    """Of a micro-batch of two commits, whose transaction is in the second."""
    sink = Lossy(bench.uri)
    sink.prepare()
    sink.plan([request("a"), request("b")])
    with pytest.raises(SinkDown, match="timed out"):
        sink.write(Batch("q", 0), request("a"))
    assert sink.write(Batch("q", 0), request("a")) == Outcome(inserted=1)
    assert version(bench) == 1
    assert sink.write(Batch("q", 0), request("b")) == Outcome(inserted=1)
    assert (version(bench), len(bench.rows())) == (2, 2)


def test_a_later_micro_batch_says_that_an_earlier_one_is_there(bench: Bench) -> None:
    sink = stale(bench)
    sink.write(Batch("q", 5), request("a"))
    sink.plan([request("b")])
    assert sink.outcomes(Batch("q", 4)) == {"b": Outcome(repeats=1)}
    assert sink.write(Batch("q", 4), request("b")) == Outcome(repeats=1)
    assert sink.outcomes(Batch("q", 6)) == {}
    assert sink.outcomes(Batch("other", 4)) == {}


def test_a_table_of_others_is_refused_and_one_that_fits_is_taken(bench: Bench, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "x"), pa.table({"source": ["a"], "time_ms": ["text"]}))
    with pytest.raises(ConfigError, match=r"^sink: .*metric, time_ms"):
        DeltaSink(str(tmp_path / "x")).prepare()
    bench.write(0, mixed())
    DeltaSink(bench.uri).prepare()
    assert len(bench.rows()) == 10


def test_a_store_that_is_not_there_is_down(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SinkDown):
        DeltaSink(str(tmp_path / "file" / "table")).prepare()
    sink = DeltaSink(str(tmp_path / "gone"))
    with pytest.raises(SinkDown):
        sink.write(Batch("q", 0), request("a"))
