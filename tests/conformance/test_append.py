"""Rows without a key, on the staged path, in a real PostgreSQL: each is added once, whatever comes twice or dies."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence

import psycopg
import pytest

from headrace_core.errors import ConfigError
from headrace_spark.checks import check
from headrace_spark.sinks.merging import _ALL, Append
from headrace_spark.sinks.port import Batch
from headrace_spark.sinks.postgres import PostgresSink
from headrace_spark.transforms.records import Record, Report
from tests.conformance.test_staged_path import Bench, fetch_from, make
from tests.unit.spark.fakes import Killed, document, job, member, record

__all__ = ["make"]
_ONE = {"sink": "postgresql://a/b", "state_dsn": "postgresql://a/b", "path": "staged", "append": True}


def values(bench: Bench) -> list[float]:
    """What the table has, in the order in which it was added."""
    return [row[0] for row in bench.sql("SELECT value FROM measurements ORDER BY ctid")]


def test_rows_of_one_source_metric_and_time_stand_side_by_side(make: Callable[..., Bench]) -> None:
    bench = make(append=True)
    older = document(2, [member(1, 2.0), member(1, 3.0)], closed_at=9)
    counts = bench.write([record(0, document(1, [member(1, 1.0)], closed_at=10)), record(1, older)])
    assert values(bench) == [1.0, 2.0, 3.0]
    assert (counts.rows, counts.inserted, counts.replaced, counts.repeats) == (3, 3, 0, 0)
    assert counts.requests == 3, "two chunks, one slice"


def test_a_document_that_comes_twice_is_added_once(make: Callable[..., Bench]) -> None:
    bench = make(append=True)
    one, other = document(1, [member(1, 1.0), member(2, 2.0)]), document(2, [member(1, 3.0)])
    again = Record("batches", 1, 0, 0, b"k", one, [])
    counts = bench.write([record(0, one), record(1, other), record(2, one), again])
    assert (counts.inserted, counts.documents_repeated, values(bench)) == (3, 2, [1.0, 2.0, 3.0])
    later = bench.write([record(3, other), record(4, document(3, [member(1, 4.0)]))], Batch("q", 1))
    assert (later.inserted, later.documents_repeated, values(bench)) == (1, 1, [1.0, 2.0, 3.0, 4.0])


def test_a_repeat_after_a_death_adds_nothing_twice(make: Callable[..., Bench]) -> None:
    bench = make(append=True)
    records = [record(n, document(n + 1, [member(t, float(t)) for t in range(7)])) for n in range(4)]
    records.append(record(4, b"{"))
    bench.task(0, records[:2])

    class Dies:
        def send(self, _: object) -> None:
            raise Killed

    with pytest.raises(Killed):
        bench.writer(Dies()).write(Batch("q", 0), [bench.task(0, records)], fetch_from(records))
    assert values(bench) == []
    counts = bench.write(records)
    assert (counts.inserted, len(values(bench)), bench.staged()) == (28, 28, 0)
    assert bench.write(records).rows == 0
    assert len(values(bench)) == 28


def test_what_the_table_refuses_is_told_and_its_neighbours_are_added(make: Callable[..., Bench]) -> None:
    bench = make(append=True, max=10)
    bench.sql("ALTER TABLE measurements ADD CHECK (value < 100)")
    found = [record(n, document(n + 1, [member(t, 10.0 * n + t) for t in range(5)])) for n in range(10)]
    found[3] = record(3, document(4, [member(0, 1.0), member(1, 500.0, "x"), member(2, 2.0)]))
    counts = bench.write(found)
    assert (counts.rows, counts.inserted, counts.rows_refused) == (48, 47, 1)
    [letter] = [json.loads(one.value) for one in bench.outbox.letters]
    assert (letter["reason"], letter["offset"], letter["element"]) == ("sink_rejected", 3, 1)
    assert sorted(values(bench)) == sorted([10.0 * n + t for n in range(10) for t in range(5) if n != 3] + [1.0, 2.0])


def test_each_refused_row_is_told_of_the_member_that_has_it(make: Callable[..., Bench]) -> None:
    bench = make(append=True, max=10)
    bench.sql("ALTER TABLE measurements ADD CHECK (value < 100)")
    members = [member(1, value) for value in (1.0, 500.0, 2.0, 600.0, 500.0)]
    counts = bench.write([record(0, document(1, members))])
    assert (counts.inserted, counts.rows_refused, counts.dead_letters) == (2, 3, {"sink_rejected": 3})
    assert [json.loads(one.value)["element"] for one in bench.outbox.letters] == [1, 3, 4]


def test_slices_are_halved_until_their_kib_fit(make: Callable[..., Bench]) -> None:
    bench = make(append=True, cost="per_kib(10)", stage_cost="per_kib(5)", capacity=30, max=100)
    counts = bench.write([record(0, document(1, [member(t, t, "m" * 1000) for t in range(8)]))], tasks=1)
    assert (counts.inserted, max(bench.pacer.costs)) == (8, 30)


def test_many_documents_are_joined_to_many_rows_in_one_pass(make: Callable[..., Bench]) -> None:
    """Not row by row, though the planner takes what is staged for a row or two."""
    bench = make(append=True, max=1000, capacity=1_000_000)
    bench.write([record(0, document(1, [member(1, 1.0)]))])
    bench.sql("ANALYZE hr_stage_measurements")
    found = [record(n, document(n + 1, [member(t, float(t)) for t in range(40)])) for n in range(1, 401)]
    plans: list[str] = []
    number = Append._number

    def explained(self: Append, fresh: Sequence[Report]) -> int:
        total = number(self, fresh)
        at, places = self._at, [list(column) for column in zip(*(one.place for one in fresh), strict=True)]
        at.run("DROP TABLE hr_merge")
        key = (*places, self._batch.query_id, self._batch.batch_id, self._attempts)
        plans.extend(row[0] for row in at.rows("EXPLAIN " + _ALL.format(staging=self._staging), key))
        return number(self, fresh) if total else 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Append, "_number", explained)
        assert bench.write(found, Batch("q", 1)).inserted == 16_000
    assert "Hash Join" in "".join(plans) or "Merge Join" in "".join(plans), plans
    assert "Nested Loop" not in "".join(plans)


@pytest.mark.parametrize("seed", range(8))
def test_at_random_the_table_has_the_rows_of_each_document_once(make: Callable[..., Bench], seed: int) -> None:
    dice = random.Random(seed)
    bench = make(append=True, max=dice.choice([1, 3, 50]))
    documents = [
        document(n + 1, [member(dice.randrange(3), float(n)) for _ in range(dice.randrange(1, 6))],
                 closed_at=dice.randrange(3))
        for n in range(12)
    ]  # fmt: skip
    wanted: Counter[float] = Counter()
    seen: set[int] = set()
    for batch in range(6):
        chosen = [dice.randrange(12) for _ in range(dice.randrange(1, 9))]
        records = [record(100 * batch + at, documents[n]) for at, n in enumerate(chosen)]
        for n in set(chosen) - seen:
            wanted[float(n)] += len(json.loads(documents[n])["members"])
        seen |= set(chosen)
        if dice.random() < 0.3:
            bench.task(9, records, Batch("q", batch))
        bench.write(records, Batch("q", batch), tasks=dice.randrange(1, 4))
    assert Counter(values(bench)) == wanted
    assert bench.ledger.totals().inserted == wanted.total()


def test_the_table_is_made_without_a_key_and_one_that_is_there_stays_as_it_is(server: str) -> None:
    with psycopg.connect(server, autocommit=True) as db:
        for table, append in (("appended", True), ("keyed", False)):
            PostgresSink(server, table, append=append).prepare()
            PostgresSink(server, table, append=True).prepare()
            keys = db.execute("SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass", (table,)).fetchone()
            assert keys == (0 if append else 1,)


@pytest.mark.parametrize(
    ("key", "fits"),
    [
        ("", False),
        ("UNIQUE (time_ms, source, metric)", True),
        ("UNIQUE (source, metric)", False),
        ("UNIQUE (source, metric, time_ms, batch)", False),
        ("UNIQUE (source, metric, time_ms) INCLUDE (batch)", True),
        ("UNIQUE (source, metric, time_ms) DEFERRABLE", False),
    ],
)
def test_rows_that_replace_others_need_a_table_with_their_key(server: str, key: str, fits: bool) -> None:
    with psycopg.connect(server, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS made")
        columns = (
            "source text, metric text, time_ms bigint, value float8, boolean boolean, closed_at bigint, batch text"
        )
        db.execute(f"CREATE TABLE made ({columns}{', ' * bool(key)}{key})")
        if fits:
            PostgresSink(server, "made").prepare()
        else:
            with pytest.raises(ConfigError, match="table: made has no unique key of source, metric and time_ms"):
                PostgresSink(server, "made").prepare()
        PostgresSink(server, "made", append=True).prepare()


def test_what_cannot_be_appended_names_the_field() -> None:
    check(job(**_ONE))
    for wrong in ({"path": "direct"}, {"sink": "sqlite:////a", "path": "direct"}):
        with pytest.raises(ConfigError, match=r"^append: "):
            check(job(**{**_ONE, **wrong}))
    with pytest.raises(ConfigError, match=r"^backfill.name: "):
        check(job(**{**_ONE, "backfill": job().backfill.__class__(name="again")}))
