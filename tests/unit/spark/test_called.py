"""A function as the destination of mode `keyed`: what it may return and raise, and what it is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import ConfigError
from headrace_spark.exits import CorruptInput
from headrace_spark.sinks.callables import BadAnswer, Context, Result, WriteResult
from headrace_spark.sinks.called import CalledSink
from headrace_spark.transforms.rows import Row
from tests.unit.spark.fakes import document, member, record
from tests.unit.spark.keyed_bench import Bench, check

_STEPS: list[Callable[[Sequence[Row], Context], Any]] = []


def deliver(rows: Sequence[Row], context: Context) -> Any:
    """The sink: the first of the steps that are left, else all is done."""
    return _STEPS.pop(0)(rows, context) if _STEPS else None


def idempotent(rows: Sequence[Row], context: Context) -> Any:
    """The same, and promises to honour ids or versions."""
    return deliver(rows, context)


idempotent.idempotent = True  # type: ignore[attr-defined]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    _STEPS.clear()
    return Bench(tmp_path, CalledSink(f"call:{__name__}:deliver"))


def write(bench: Bench, *steps: Callable[[Sequence[Row], Context], Any], **changes: object) -> Any:
    _STEPS.extend(steps)
    whole = document(1, [member(1, number, name) for number, name in enumerate("abc")])
    return bench.write(0, [record(0, whole)], **changes)


def fails(error: BaseException) -> Callable[[Sequence[Row], Context], Any]:
    def step(_rows: Sequence[Row], _context: Context) -> Any:
        raise error

    return step


def test_a_function_is_told_all_it_may_need(bench: Bench) -> None:
    told: list[tuple[list[str], Context]] = []

    def step(rows: Sequence[Row], context: Context) -> Result:
        told.append(([row.metric for row in rows], context))
        return Result("retry" if len(told) == 1 else "done")

    counts = write(bench, step, step, request_timeout_ms=2_000)
    assert counts.inserted == 3
    [(names, first), (_, second)] = told
    assert names == ["a", "b", "c"]
    assert (first.query_id, first.batch_id, first.partition, first.attempt, second.attempt) == ("q", 0, -1, 1, 2)
    assert first.request_id == second.request_id
    assert (first.deadline_ns, first.cancelled.is_set()) == (1 + 2_000_000_000, False)


def test_a_function_that_refuses_most_rows_stops_the_job_without_dead_letters(bench: Bench) -> None:
    records = [record(0, document(1, [member(1, number, f"m{number}") for number in range(100)]))]
    _STEPS.append(lambda *_: WriteResult(dict.fromkeys(range(51), Result("reject", "no"))))
    with pytest.raises(CorruptInput, match="refuses 51 of 100 rows"):
        bench.write(0, records, max=100)
    assert bench.outbox.letters == []
    assert bench.write(0, records, max=100).inserted == 100, "it is asked again"


def test_each_row_has_an_outcome_of_its_own(bench: Bench) -> None:
    again: list[str] = []
    counts = write(
        bench,
        lambda *_: WriteResult({0: Result("reject", "no"), 2: Result("retry", "later", 250)}, charge=4),
        lambda rows, _: again.extend(row.metric for row in rows),
    )
    check(counts)
    assert again == ["c"]
    assert (counts.inserted, counts.rows_refused, counts.charged) == (2, 1, 4)
    assert bench.pacer.pauses == [(250, "resource")]
    assert bench.pacer.charges == [4]
    [letter] = [json.loads(one.value) for one in bench.outbox.letters]
    assert (letter["reason"], letter["element"], letter["detail"]) == ("sink_rejected", 0, "a: no")


def test_charges_of_rows_are_added_up(bench: Bench) -> None:
    write(bench, lambda *_: WriteResult({0: Result(charge=2), 1: Result(charge=5)}))
    assert bench.pacer.charges == [7]
    whole = Bench(bench.folder, bench.destination)
    whole.ledger.prepare()
    _STEPS.append(lambda *_: Result(charge=3))
    whole.write(1, [record(1, document(9, [member(1, 1, "a"), member(1, 2, "b")]))])
    assert whole.pacer.charges == [3], "a charge of the whole is not one of each row"


def test_a_connection_that_was_refused_is_waited_for_one_that_was_lost_is_a_try(bench: Bench) -> None:
    counts = write(bench, fails(ConnectionRefusedError()), fails(TimeoutError()), fails(ConnectionResetError()))
    assert (counts.inserted, counts.retries) == (3, 2 + 1)
    assert bench.slept == [0.5]
    assert bench.pacer.pauses == [(None, "instance")] * 2


@pytest.mark.parametrize(
    "found",
    [
        "done",
        Result("later"),
        Result(charge=-1),
        Result(charge=True),
        WriteResult({3: Result()}),
        WriteResult({-1: Result()}),
    ],  # type: ignore[arg-type]
)
def test_what_a_function_must_not_return_fails_the_micro_batch(bench: Bench, found: Any) -> None:
    with pytest.raises(BadAnswer):
        write(bench, lambda *_: found)
    assert not bench.outbox.letters


def test_what_a_function_raises_fails_the_micro_batch(bench: Bench) -> None:
    with pytest.raises(ZeroDivisionError):
        write(bench, fails(ZeroDivisionError()))


def test_only_a_function_that_says_so_has_one_effect(bench: Bench) -> None:
    assert bench.destination.effects == "at_least_once"
    assert CalledSink(f"call:{__name__}:idempotent").effects == "once"
    with pytest.raises(ConfigError, match="sink"):
        CalledSink(f"call:{__name__}:none")
