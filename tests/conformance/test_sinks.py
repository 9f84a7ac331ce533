"""The sink port's contract: one suite, every implementation. SQLite always; PostgreSQL where a server is installed."""

from __future__ import annotations

import itertools
import random
import sqlite3
import string
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from headrace_spark.database import Database
from headrace_spark.ledger import Ledger
from headrace_spark.sinks.port import Batch, Outcome, Sink, SinkDown
from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.sinks.sqlite import SqliteSink
from headrace_spark.transforms.measurements import MAX_KEY_BYTES
from headrace_spark.transforms.rows import Request, Row, request_id

_FIRST = Batch("q", 0)
_SECOND = Batch("q", 1)
_numbers = itertools.count()


class Store:
    """A fresh table: `open` gives a new sink on it, `rows` what it holds."""

    def __init__(self, open_sink: Callable[[], Sink], rows: Callable[[], list[tuple]]) -> None:
        self.open = open_sink
        self.rows = rows


def test_jobs_that_start_at_once_on_a_new_database_all_find_their_tables(server: str) -> None:
    for number in range(5):
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(f"CREATE DATABASE fresh{number}")
        url = server.replace("/postgres", f"/fresh{number}")
        start = threading.Barrier(8)

        def job(name: int, url: str = url, start: threading.Barrier = start) -> None:
            ledger, sink = Ledger(Database(url), f"job{name}"), PostgresSink(url)
            start.wait(60)
            ledger.prepare()
            sink.prepare()
            ledger.remember("q", "c")

        with ThreadPoolExecutor(8) as pool:
            for ended in [pool.submit(job, name) for name in range(8)]:
                ended.result(240)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    query = "SELECT source, metric, time_ms, value, boolean, closed_at, batch FROM {} ORDER BY 1, 2, 3"
    if request.param == "sqlite":
        path = tmp_path / "sink.db"

        def rows() -> list[tuple]:
            with sqlite3.connect(path) as db:
                return db.execute(query.format("measurements")).fetchall()

        return Store(lambda: SqliteSink(path), rows)
    url, table = request.getfixturevalue("server"), f"m{next(_numbers)}"

    def rows_of_postgres() -> list[tuple]:
        with psycopg.connect(url) as db:
            return db.execute(query.format(table)).fetchall()

    with psycopg.connect(url) as db:
        db.execute("DROP TABLE IF EXISTS hr_request")
    return Store(lambda: PostgresSink(url, table), rows_of_postgres)


@pytest.fixture
def sink(store: Store) -> Iterator[Sink]:
    sink = store.open()
    sink.prepare()
    yield sink
    sink.close()


def row(metric: str = "temp", value: float = 1.5, *, closed_at: int = 10, batch: str = "b", time_ms: int = 5) -> Row:
    return Row("te/device/a//", metric, time_ms, closed_at, batch, value, False)


def ask(*rows: Row) -> Request:
    return Request(request_id(rows), list(rows), len(rows))


def test_rows_are_written_with_every_column(store: Store, sink: Sink) -> None:
    yes = Row("te/device/ä$//", "on.é", -5, 10, "b", 1.0, True)
    assert sink.write(_FIRST, ask(row(), yes)) == Outcome(inserted=2)
    assert [tuple(found) for found in store.rows()] == [
        ("te/device/a//", "temp", 5, 1.5, False, 10, "b"),
        ("te/device/ä$//", "on.é", -5, 1.0, True, 10, "b"),
    ]


def test_the_longest_key_that_the_writer_takes_fits(store: Store, sink: Sink) -> None:
    dice = random.Random(1)  # what does not compress
    long = "".join(dice.choices(string.ascii_letters + string.digits, k=MAX_KEY_BYTES - len("te/device/a//")))
    assert sink.write(_FIRST, ask(row(long))) == Outcome(inserted=1)
    assert [found[1] for found in store.rows()] == [long]


def test_a_request_that_is_asked_again_has_one_effect_and_the_same_answer(store: Store, sink: Sink) -> None:
    request = ask(row(), row("hum", 40.0))
    first = sink.write(_FIRST, request)
    sink.close()
    again = store.open()
    assert again.write(_FIRST, request) == first == Outcome(inserted=2)
    assert again.outcomes(_FIRST) == {request.id: first}
    assert len(store.rows()) == 2
    again.close()


def test_a_higher_version_replaces_and_a_lower_or_equal_one_does_not(store: Store, sink: Sink) -> None:
    sink.write(_FIRST, ask(row(value=1, closed_at=10, batch="b")))
    assert sink.write(_SECOND, ask(row(value=2, closed_at=9, batch="z"))) == Outcome(repeats=1)
    assert sink.write(_SECOND, ask(row(value=3, closed_at=10, batch="a"))) == Outcome(repeats=1)
    assert sink.write(_SECOND, ask(row(value=4, closed_at=10, batch="b"))) == Outcome(repeats=1)
    assert [found[3] for found in store.rows()] == [1]
    assert sink.write(_SECOND, ask(row(value=5, closed_at=10, batch="c"))) == Outcome(replaced=1)
    assert sink.write(_SECOND, ask(row(value=6, closed_at=11, batch="a"))) == Outcome(replaced=1)
    assert [found[3:] for found in store.rows()] == [(6, False, 11, "a")]


def test_versions_compare_texts_by_bytes(sink: Sink) -> None:
    sink.write(_FIRST, ask(row(value=1, batch="a")))
    assert sink.write(_SECOND, ask(row(value=2, batch="B"))) == Outcome(repeats=1)


def test_the_outcome_counts_new_replaced_and_repeated_rows_of_one_request(sink: Sink) -> None:
    sink.write(_FIRST, ask(row("a"), row("b", closed_at=99)))
    mixed = ask(row("a", closed_at=11, batch="c"), row("b", closed_at=11, batch="c"), row("new", batch="c"))
    assert sink.write(_SECOND, mixed) == Outcome(inserted=1, replaced=1, repeats=1)


def test_a_request_that_fails_leaves_nothing_behind(store: Store, sink: Sink) -> None:
    broken = Row("s", "m", 1, 1, "b", None, False)  # type: ignore[arg-type]  # the column takes no null
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError, struct.error)):
        sink.write(_FIRST, Request("r", [row(), broken], 2))
    assert store.rows() == []
    assert sink.outcomes(_FIRST) == {}
    assert sink.write(_FIRST, ask(row())) == Outcome(inserted=1)


def test_forgetting_a_batch_keeps_the_rows_and_the_other_batches(store: Store, sink: Sink) -> None:
    first, second = ask(row("a")), ask(row("b"))
    sink.write(_FIRST, first)
    sink.write(_SECOND, second)
    sink.forget(_FIRST)
    assert sink.outcomes(_FIRST) == {}
    assert sink.outcomes(_SECOND) == {second.id: Outcome(inserted=1)}
    assert len(store.rows()) == 2


def test_prepare_may_be_repeated(store: Store, sink: Sink) -> None:
    sink.write(_FIRST, ask(row()))
    sink.prepare()
    assert len(store.rows()) == 1


def test_a_store_that_cannot_be_reached_is_down(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(SinkDown):
        SqliteSink(tmp_path / "folder.db").write(_FIRST, ask(row()))
    with pytest.raises(SinkDown):
        PostgresSink("postgresql://nobody@127.0.0.1:1/none?connect_timeout=2").write(_FIRST, ask(row()))
