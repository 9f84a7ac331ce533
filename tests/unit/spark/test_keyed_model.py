"""Beside a model that is slow and obvious: whatever a store answers, whenever the driver dies, and however often
records come back, each row ends in the store or in the dead letters, and the sums hold."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_spark.sinks.answers import Answer, Verdict
from headrace_spark.transforms.decode import decode
from headrace_spark.transforms.measurements import measurements
from headrace_spark.transforms.records import Record
from headrace_spark.transforms.retries import FIRST_DELAY_MS, LONGEST_DELAY_MS, delay_ms, spans
from headrace_spark.transforms.rows import Row, rows
from tests.unit.spark.fakes import Killed, document, member, record
from tests.unit.spark.keyed_bench import Bench, Store, back, check

NAMES = "abcde"
Documents = list[tuple[int, list[tuple[int, list[str]]]]]
_member = st.tuples(st.integers(0, 2), st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
_documents = st.lists(st.tuples(st.integers(0, 3), st.lists(_member, min_size=1, max_size=3)), min_size=1, max_size=5)


def made(found: Documents) -> list[Record]:
    """Documents with members of one or more rows each; rows of different documents may be the same."""
    return [
        record(
            number,
            document(
                number + 1,
                [member(time, dict.fromkeys(names, number + time / 10), "k") for time, names in members],
                closed_at=closed_at,
            ),
        )
        for number, (closed_at, members) in enumerate(found)
    ]


class Moody:
    """Answers at random, refuses rows of some metrics and documents for good, and kills the driver now and then."""

    def __init__(self, seed: int, never: set[str], bad: set[int], deaths: int) -> None:
        self.dice, self.never, self.bad, self.deaths = random.Random(seed), never, bad, deaths

    def __call__(self, store: Store, found: Sequence[Row]) -> Answer:
        self.maybe_die()
        if len(found) > 1 and self.dice.random() < 0.2:
            return Answer(too_large=True)
        answer = Answer([self.verdict(store, row) for row in found], busy=self.dice.random() < 0.5)
        self.maybe_die()
        return answer

    def verdict(self, store: Store, row: Row) -> Verdict:
        chance = self.dice.random()
        if chance < 0.3:
            return Verdict("refused", "busy")
        if self.refuses(row):
            return Verdict("rejected", "never")
        told = store.take(row)
        return Verdict("unknown", "lost") if chance < 0.6 else told

    def refuses(self, row: Row) -> bool:
        return row.metric in self.never or int(row.value) in self.bad

    def maybe_die(self) -> None:
        if self.deaths and self.dice.random() < 0.3:
            self.deaths -= 1
            raise Killed


def patiently(bench: Bench, batch: int, found: Sequence[Record]) -> None:
    """Start again after each death."""
    while True:
        try:
            check(bench.write(batch, found, max_rounds=3, max_attempts=2))
        except Killed:
            continue
        return


@settings(max_examples=40, deadline=None)
@given(
    _documents,
    st.integers(0, 2**32),
    st.sets(st.sampled_from(["k.a", "k.b"])),
    st.sets(st.integers(0, 4)),
    st.integers(0, 4),
)
def test_every_row_ends_in_the_store_or_in_the_dead_letters(
    found: Documents, seed: int, never: set[str], bad: set[int], deaths: int
) -> None:
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.store.always = moody = Moody(seed, never, bad, deaths)
        whole, batch, comes = made(found), 0, made(found)
        while comes:
            patiently(bench, batch, comes)
            comes, batch = back(bench.take_retries(), batch * 100), batch + 1  # type: ignore[arg-type]
        totals = bench.ledger.totals()
        check(totals)
        assert totals.rows_postponed >= totals.records_postponed

    letters = [json.loads(one.value) for one in bench.outbox.letters]
    told = {(one["offset"], one["element"]) for one in letters}
    assert totals.dead_letters == by_reason(letters)
    for one in whole:
        decoded = decode(one.value, 100_000)
        same: dict[tuple[str, str, int], int] = {}  # two members with one row: the first stands for it
        for element in range(len(decoded.members)):
            for row in rows(measurements(decoded, left=frozenset([element]))):
                first = same.setdefault(row.id, element)
                stored = bench.store.rows.get(row.id)
                done = stored is not None and stored.version >= row.version
                newer = [other for other in every(whole) if other.id == row.id and other.version > row.version]
                superseded = not all(map(moody.refuses, newer))
                assert done or superseded or (one.offset, first) in told
                assert not moody.refuses(row) or stored != row


def every(records: Sequence[Record]) -> list[Row]:
    return [row for one in records for row in rows(measurements(decode(one.value, 100_000)))]


def by_reason(letters: Sequence[dict]) -> dict[str, int]:
    return {
        reason: sum(one["reason"] == reason for one in letters) for reason in sorted({one["reason"] for one in letters})
    }


@given(st.uuids(), st.integers(0, 5000))
def test_a_delay_doubles_within_a_fifth_up_to_an_hour_and_depends_on_nothing_else(document: object, past: int) -> None:
    name = str(document)
    found = delay_ms(name, past)
    assert found == delay_ms(name, past)
    whole = min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** min(past, 30))
    assert 0.8 * whole - 1 <= found <= min(LONGEST_DELAY_MS, 1.2 * whole + 1)


def test_delays_of_different_documents_are_spread() -> None:
    found = [delay_ms(f"{number:032x}", 0) for number in range(1000)]
    assert min(found) < 24_500 < 29_000 < sum(found) / 1000 < 31_000 < 35_500 < max(found)


@given(st.sets(st.integers(0, 60)))
def test_spans_name_the_same_numbers(numbers: set[int]) -> None:
    found = spans(sorted(numbers))
    assert {one for first, last in found for one in range(first, last + 1)} == numbers
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found))


@pytest.mark.parametrize(
    ("left", "members"),
    [(b"[[1,1]]", 1), (b"[[0,0],[2,2]]", 2), (None, 3), (b"", 3), (b"\xff", 3), (b"[[0]]", 3), (b'"all"', 3),
     (b"[]", 0), (b"[[-5,99999999999]]", 3)],
)  # fmt: skip
def test_what_is_left_is_read_and_what_cannot_be_read_is_all(tmp_path: Path, left: bytes | None, members: int) -> None:
    bench = Bench(tmp_path)
    whole = document(1, [member(1, 1, name) for name in "abc"])
    headers = [("hr-round", b"2"), ("hr-left", left)] if left is not None else []
    one = Record("h.w.again", 0, 0, 0, b"k", whole, headers)
    counts = bench.write(0, [one])
    assert (counts.members, counts.inserted, counts.rounds) == (members, members, {"2" if headers else "1": 1})


def test_headers_of_retries_mean_nothing_on_another_topic(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    headers = [("hr-round", b"9"), ("hr-left", b"[[0,0]]"), ("hr-source", b"x-0-7")]
    bench.store.always = lambda store, found: Answer([Verdict("refused")] * len(found))  # noqa: ARG005
    counts = bench.write(0, [record(3, document(1, [member(1, 1, name) for name in "abc"]), headers)])
    assert (counts.members, counts.rounds, counts.dead_letters) == (3, {}, {})
    [delayed] = bench.take_retries()
    assert dict(delayed.headers)["hr-source"] == b"headrace.batches-0-3"
    assert [name for name, _ in delayed.headers] == ["deliver-at", "hr-round", "hr-source", "hr-left"]
