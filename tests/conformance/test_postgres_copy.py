"""How rows get into a table of PostgreSQL on the direct path: by COPY where all are new, by arrays where not, or where
the table is not the writer's own kind. Whatever the way, the table and the outcomes are those of a slow model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from headrace_spark.sinks.port import Batch, Outcome
from headrace_spark.sinks.postgres import LONGEST, PostgresSink, Trial
from headrace_spark.transforms.rows import Request, Row, highest, request_id

_COLUMNS = "source text {c}, metric {text} {c}, time_ms bigint, value {value}, boolean boolean, closed_at {closed}"
_KINDS = {
    "as the writer makes it": {"text": "text", "value": "float8", "closed": "bigint"},
    "other types, which the server casts": {"text": "varchar(99)", "value": "numeric", "closed": "float8"},
    "texts of limited length": {"text": "varchar(99)", "value": "float8", "closed": "bigint"},
}
_SPY = """
CREATE TABLE ways (n serial, way text);
CREATE FUNCTION spy() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO ways (way) VALUES (split_part(ltrim(current_query()), ' ', 1)); RETURN NULL; END $$;
CREATE TRIGGER spy AFTER INSERT ON measurements FOR EACH STATEMENT EXECUTE FUNCTION spy()"""
_SKIP = """
CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RETURN CASE WHEN NEW.metric = 'm1' THEN NULL ELSE NEW END; END $$;
CREATE TRIGGER skip BEFORE INSERT ON measurements FOR EACH ROW EXECUTE FUNCTION skip()"""
_numbers = itertools.count()


class Table:
    """A database of its own with the table `measurements`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sink = PostgresSink(url)
        self.turn = 0

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True, client_encoding="utf-8") as db:
            found = db.execute(text)
            return found.fetchall() if found.description else []

    def write(self, *rows: Row) -> Outcome:
        self.turn += 1
        return self.sink.write(Batch("q", self.turn), Request(request_id(rows), list(rows), len(rows)))

    def stored(self) -> list[tuple[Any, ...]]:
        found = self.sql("SELECT source, metric, time_ms, value, boolean, closed_at, batch FROM measurements")
        return sorted((*row[:3], float(row[3]), row[4], int(row[5]), row[6]) for row in found)

    def ways(self) -> list[str]:
        return [way for _, way in self.sql("SELECT n, way FROM ways ORDER BY n")]


@pytest.fixture
def make(server: str) -> Callable[..., Table]:
    def table(columns: dict[str, str] | None = None, encoding: str = "UTF8") -> Table:
        name = f"copy{next(_numbers)}"
        with psycopg.connect(server, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        found = Table(server.rpartition("/")[0] + f"/{name}")
        if columns is not None:
            shape = _COLUMNS.format(**columns, c='COLLATE "C"')
            found.sql(
                f'CREATE TABLE measurements ({shape}, batch text COLLATE "C", PRIMARY KEY (source, metric, time_ms))'
            )
        found.sink.prepare()
        return found

    return table


def row(metric: str, time_ms: int = 1, *, closed_at: int = 10, batch: str = "b", value: float = 1.5) -> Row:
    return Row("te/device/a//", metric, time_ms, closed_at, batch, value, value == 1.0)


def model(known: dict[tuple[Any, ...], Row], rows: Sequence[Row]) -> Outcome:
    """Row by row: what is new, what has a higher version."""
    done = Outcome()
    for one in rows:
        before = known.get(one.id)
        if before is None or before.version < one.version:
            known[one.id] = one
        done += Outcome(before is None, before is not None and before.version < one.version,
                        before is not None and before.version >= one.version)  # fmt: skip
    return done


@pytest.mark.parametrize("kind", list(_KINDS))
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_way_the_table_is_that_of_the_model(make: Callable[..., Table], kind: str, seed: int) -> None:
    table, dice, known = make(_KINDS[kind]), random.Random(seed), dict[tuple[Any, ...], Row]()
    for turn in range(60):
        recent = range(turn * 10, turn * 10 + 40) if dice.random() < 0.7 else range(turn * 10 + 40)
        found = [
            row(f"m{dice.randrange(3)}", dice.choice(recent), closed_at=dice.randrange(5), batch=dice.choice("ab"),
                value=dice.choice([1.0, -2.5, 1e300]))
            for _ in range(dice.randrange(1, 12))
        ]  # fmt: skip
        rows = highest(found)
        assert table.write(*rows) == model(known, rows)
    assert table.stored() == sorted(
        (*one.id, one.value, one.boolean, one.closed_at, one.batch) for one in known.values()
    )


def test_new_rows_go_by_copy_and_what_meets_others_by_arrays(make: Callable[..., Table]) -> None:
    table = make()
    table.sql(_SPY)
    assert table.write(row("a"), row("b")) == Outcome(inserted=2)
    assert table.ways() == ["COPY"]
    assert table.write(row("b", closed_at=11), row("c")) == Outcome(inserted=1, replaced=1)
    assert table.write(row("d")) == Outcome(inserted=1)
    assert table.ways() == ["COPY", "INSERT", "INSERT"], "after a try that failed the next request does not try"
    assert table.write(row("e")) == Outcome(inserted=1)
    assert table.ways()[3:] == ["COPY"]
    assert [found[1] for found in table.stored()] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("kind", ["other types, which the server casts"])
def test_a_table_of_other_types_never_gets_a_copy(make: Callable[..., Table], kind: str) -> None:
    table = make(_KINDS[kind])
    table.sql(_SPY)
    for number in range(3):
        assert table.write(row(f"m{number}")) == Outcome(inserted=1)
    assert table.ways() == ["INSERT"] * 3


def test_a_view_gets_arrays(make: Callable[..., Table]) -> None:
    table = make()
    table.sql("ALTER TABLE measurements RENAME TO base")
    table.sql("CREATE VIEW measurements AS SELECT * FROM base")
    assert table.write(row("a"), row("b")) == Outcome(inserted=2)
    assert table.write(row("b", closed_at=11), row("c")) == Outcome(inserted=1, replaced=1)
    assert [found[1] for found in table.stored()] == ["a", "b", "c"]


def test_a_table_with_row_level_security_gets_arrays(make: Callable[..., Table]) -> None:
    table = make()
    role = f"writer{next(_numbers)}"
    table.sql(f"CREATE ROLE {role} LOGIN")
    table.sql(f"GRANT ALL ON measurements, hr_request TO {role}")
    table.sql("ALTER TABLE measurements ENABLE ROW LEVEL SECURITY")
    table.sql("CREATE POLICY all_rows ON measurements USING (true) WITH CHECK (true)")
    table.sink = PostgresSink(table.url.replace("headrace@", f"{role}@"))
    assert table.write(row("a"), row("b")) == Outcome(inserted=2)
    assert table.write(row("b", closed_at=11), row("c")) == Outcome(inserted=1, replaced=1)
    assert [found[1] for found in table.stored()] == ["a", "b", "c"]


def test_rows_that_a_trigger_leaves_out_are_no_inserted_ones(make: Callable[..., Table]) -> None:
    table = make()
    table.sql(_SKIP)
    assert table.write(row("m0"), row("m1"), row("m2")) == Outcome(inserted=2, repeats=1)
    assert table.write(row("m3"), row("m1")) == Outcome(inserted=1, repeats=1)
    assert [found[1] for found in table.stored()] == ["m0", "m2", "m3"]


def test_texts_are_right_in_a_database_of_another_encoding(make: Callable[..., Table]) -> None:
    table = make(encoding="LATIN1")
    assert table.write(row("größe")) == Outcome(inserted=1)
    assert table.write(row("größe", closed_at=11), row("é")) == Outcome(inserted=1, replaced=1)
    assert [found[1] for found in table.stored()] == ["größe", "é"]
    with pytest.raises(psycopg.DataError):
        table.write(row("温度"))
    assert len(table.stored()) == 2


def test_a_try_pays_for_itself() -> None:
    trial, tries = Trial(), 0
    for _ in range(1000):
        if trial.due():
            tries += 1
            trial.ended(well=False)
    assert tries <= 1000 // LONGEST + LONGEST.bit_length()
    while not trial.due():
        pass
    trial.ended(well=True)
    assert trial.due()
