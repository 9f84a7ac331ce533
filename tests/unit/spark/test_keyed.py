"""Mode `keyed` with a destination that answers for each row: tries, pauses, delayed retries, dead letters, kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headrace_core.errors import ConfigError
from headrace_schemas import validator
from headrace_spark.database import Database
from headrace_spark.exits import CorruptInput
from headrace_spark.keyed import WAVES, Exhausted
from headrace_spark.outbox import OutboxDown
from headrace_spark.sinks.answers import Answer, Verdict
from headrace_spark.sinks.port import Batch, SinkDown
from headrace_spark.transforms.records import Record
from tests.unit.spark.fakes import Killed, Unheard, document, member, record
from tests.unit.spark.keyed_bench import Bench, at_most, back, behave, check, say


class Dying:
    """An outbox in which the driver dies."""

    def __init__(self):
        self.letters = []

    def send(self, letters):
        self.letters.append(list(letters))
        raise Killed


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def records() -> list[Record]:
    """Two documents: a b c in one, d in the other."""
    return [
        record(0, document(1, [member(1, 1, "a"), member(1, {"x": 2}, "b"), member(1, 3, "c")]), [("id", b"i0")]),
        record(1, document(2, [member(1, 4, "d")])),
    ]


def sent(bench: Bench) -> list[list[str]]:
    return [[row.metric for row in rows] for _, rows in bench.store.calls]


def stored(bench: Bench) -> list[str]:
    return sorted(row.metric for row in bench.store.rows.values())


def test_all_goes_well(bench: Bench) -> None:
    counts = bench.write(0, records())
    check(counts)
    assert (counts.inserted, counts.requests, counts.retries, counts.cost) == (4, 2, 0, 4)
    assert (sent(bench), stored(bench)) == ([["a", "b.x", "c"], ["d"]], ["a", "b.x", "c", "d"])
    assert bench.outbox.letters == bench.retries.letters == bench.pacer.pauses == []
    assert bench.ledger.totals() == counts
    assert bench.sql("SELECT * FROM hr_sent") == []


def test_only_refused_rows_go_again_after_a_pause_of_the_resource(bench: Bench) -> None:
    bench.store.script += [say("refused", "b.x", busy=True, retry_after_ms=700), say("refused", busy=True)]
    counts = bench.write(0, records())
    check(counts)
    assert sent(bench) == [["a", "b.x", "c"], ["b.x"], ["b.x"], ["d"]]
    assert [context.attempt for context, _ in bench.store.calls] == [1, 2, 3, 1]
    assert bench.pacer.pauses == [(700, "resource"), (None, "resource")]
    assert bench.pacer.answers == [False, False, True, True]
    assert (counts.retries, counts.inserted, counts.cost) == (2, 4, 6)
    assert bench.sql("SELECT sum(cost) FROM hr_dispatch") == [(6,)]


def test_fewer_rows_are_another_request_and_the_same_rows_the_same(bench: Bench) -> None:
    bench.store.script += [say("unknown"), say("refused", "a"), behave]
    bench.write(0, records())
    first, again, fewer = (context.request_id for context, _ in bench.store.calls[:3])
    assert first == again != fewer


def test_what_is_unknown_goes_again_after_a_pause_of_this_process_alone(bench: Bench) -> None:
    bench.store.script += [say("unknown")]
    assert bench.write(0, records()).inserted == 4
    assert bench.pacer.pauses == [(None, "instance")]


def test_what_is_too_large_is_halved_down_to_a_single_row(bench: Bench) -> None:
    bench.store.always = at_most(1)
    counts = bench.write(0, records())
    assert sent(bench) == [["a", "b.x", "c"], ["a"], ["b.x", "c"], ["b.x"], ["c"], ["d"]]
    assert counts.inserted == 4
    assert bench.pacer.pauses == []


def test_a_single_row_that_is_too_large_is_a_dead_letter(bench: Bench) -> None:
    bench.store.always = lambda store, rows: (
        Answer(too_large=True) if any(row.metric == "b.x" for row in rows) else behave(store, rows)
    )
    counts = bench.write(0, records())
    check(counts)
    assert (counts.inserted, counts.rows_refused, counts.dead_letters) == (3, 1, {"too_large": 1})
    [letter] = [json.loads(one.value) for one in bench.outbox.letters]
    assert (letter["reason"], letter["element"], letter["offset"]) == ("too_large", 1, 0)
    assert list(validator("dead-letter").iter_errors(letter)) == []


def test_what_is_rejected_is_a_dead_letter_and_its_neighbours_are_written(bench: Bench) -> None:
    bench.store.script += [say("rejected", "a", "c")]
    counts = bench.write(0, records())
    check(counts)
    assert stored(bench) == ["b.x", "d"]
    assert (counts.rows_refused, counts.dead_letters) == (2, {"sink_rejected": 2})
    letters = [json.loads(one.value) for one in bench.outbox.letters]
    assert [(one["element"], one["detail"], one["attempts"]) for one in letters] == [
        (0, "a: told to", 1), (2, "c: told to", 1),
    ]  # fmt: skip
    assert [dict(one.headers)["id"] for one in bench.outbox.letters] == [b"w:0:0:0", b"w:0:0:2"]
    assert bench.write(1, records()).documents_repeated == 2, "a rejected row is done"


def test_what_is_never_taken_goes_to_the_retry_topic_and_comes_back(bench: Bench) -> None:
    bench.store.script += [say("refused", "b.x")] * 3
    counts = bench.write(0, records())
    check(counts)
    assert (counts.inserted, counts.rows_postponed, counts.records_postponed, counts.retries) == (3, 1, 1, 2)
    [delayed] = bench.take_retries()
    assert (delayed.key, delayed.value) == (records()[0].key, records()[0].value)
    headers = dict(delayed.headers)
    assert headers["id"] == b"i0"
    assert (headers["hr-round"], headers["hr-source"], headers["hr-left"]) == (
        b"1",
        b"headrace.batches-0-0",
        b"[[1,1]]",
    )
    assert 24_000 <= int(headers["deliver-at"] or b"") - bench.now_ms <= 36_000

    bench.store.calls.clear()
    counts = bench.write(1, back([delayed]))
    check(counts)
    assert (sent(bench), stored(bench)) == ([["b.x"]], ["a", "b.x", "c", "d"])
    assert (counts.records, counts.members, counts.rows, counts.rounds) == (1, 1, 1, {"1": 1})
    assert bench.write(2, [*records(), *back([delayed], 1)]).documents_repeated == 3, "now it is done"
    assert bench.outbox.letters == []
    assert bench.ledger.totals().rounds == {"1": 2}


def test_after_the_last_round_a_record_is_a_dead_letter_at_its_first_place(bench: Bench) -> None:
    bench.store.always = say("refused", "b.x", "c")
    delayed, delays = [], []
    bench.write(0, records())
    for number in range(1, 9):
        [one] = bench.take_retries()
        delays.append(int(dict(one.headers)["deliver-at"] or b"") - bench.now_ms)
        delayed = back([one], number)
        assert dict(one.headers)["hr-round"] == str(number).encode()
        assert len(one.headers) == 5, "headers do not pile up"
        counts = bench.write(number, delayed)
        check(counts)
    assert bench.take_retries() == []
    for number, delay in enumerate(delays):
        assert min(3_600_000, 24_000 << number) <= delay <= min(3_600_000, 36_000 << number) or number == 7
    assert 0.8 * 3_600_000 <= delays[7] <= 3_600_000
    assert (counts.rows_refused, counts.dead_letters) == (2, {"retries_exhausted": 2})
    letters = [json.loads(one.value) for one in bench.outbox.letters]
    assert [(one["topic"], one["partition"], one["offset"], one["element"]) for one in letters] == [
        ("headrace.batches", 0, 0, 1), ("headrace.batches", 0, 0, 2),
    ]  # fmt: skip
    assert {one["attempts"] for one in letters} == {27}
    assert [list(validator("dead-letter").iter_errors(one)) for one in letters] == [[], []]
    assert bench.write(20, records()).documents_repeated == 2


def test_a_member_that_was_refused_at_first_is_not_refused_again(bench: Bench) -> None:
    bench.store.always = say("refused")
    whole = document(1, [member(1, None, "bad"), member(1, 1, "a")])
    bench.write(0, [record(0, whole)])
    assert len(bench.outbox.letters) == 1
    bench.store.always = None
    counts = bench.write(1, back(bench.take_retries()))
    assert (counts.members, counts.members_rejected, counts.inserted, len(bench.outbox.letters)) == (1, 0, 1, 1)


def test_a_late_retry_does_not_overwrite_newer_data(bench: Bench) -> None:
    bench.store.always = say("refused")
    bench.write(0, [record(0, document(1, [member(1, 1, "a")], closed_at=10))])
    bench.store.always = None
    bench.write(1, [record(1, document(2, [member(1, 2, "a")], closed_at=11))])
    counts = bench.write(2, back(bench.take_retries()))
    assert counts.repeats == 1
    assert [row.value for row in bench.store.rows.values()] == [2.0]


def test_a_strict_job_fails_instead(bench: Bench) -> None:
    bench.store.script += [say("refused", "b.x")] * 3
    with pytest.raises(Exhausted, match=r"1 rows of request .* were not taken: told to"):
        bench.write(0, records(), on_exhausted="fail")
    assert bench.retries.letters == []
    counts = bench.write(0, records(), on_exhausted="fail")
    assert (counts.inserted, counts.repeats) == (2, 2), "the second try finds the others there"


def test_what_a_job_has_given_up_is_tried_again_once_it_is_strict(bench: Bench) -> None:
    bench.store.script += [say("refused", "a")] * 3
    real, bench.retries = bench.retries, Dying()  # type: ignore[assignment]
    with pytest.raises(Killed):
        bench.write(0, records())
    bench.retries = real
    assert bench.write(0, records(), on_exhausted="fail").rows_postponed == 0
    assert (stored(bench), real.letters) == (["a", "b.x", "c", "d"], [])


def test_nothing_of_the_sinks_needs_spark() -> None:
    names = "keyed, attempts, delta_writing, sinks.http, sinks.called, sinks.delta"
    modules = ", ".join(f"headrace_spark.{name}" for name in names.split(", "))
    code = f"import sys, {modules}; assert not any('spark' in n and 'headrace' not in n for n in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_rounds_what_is_late_is_a_dead_letter_at_once(bench: Bench) -> None:
    bench.store.script += [say("unknown", "a")] * 2
    counts = bench.write(0, records(), max_rounds=0, max_attempts=2)
    assert (counts.dead_letters, bench.retries.letters) == ({"retries_exhausted": 1}, [])
    assert json.loads(bench.outbox.letters[0].value)["attempts"] == 2


def test_a_store_that_cannot_be_reached_is_waited_for_and_no_try(bench: Bench) -> None:
    bench.store.script += [SinkDown("down")] * 5
    assert bench.write(0, records()).inserted == 4
    assert bench.slept == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert {context.attempt for context, _ in bench.store.calls} == {1}
    bench.store.always = lambda store, rows: (_ for _ in ()).throw(SinkDown("down"))  # noqa: ARG005
    with pytest.raises(SinkDown):
        bench.write(1, [record(5, document(5, [member(1, 1)]))], sink_down_max_ms=3_000)
    assert bench.retries.letters == []


def test_an_error_of_configuration_fails_the_micro_batch(bench: Bench) -> None:
    bench.store.script += [behave, ConfigError("sink", "401")]
    with pytest.raises(ConfigError):
        bench.write(0, records())
    assert (bench.outbox.letters, bench.retries.letters) == ([], [])
    assert bench.write(0, records()).inserted == 4


def test_a_charge_is_settled_and_counted(bench: Bench) -> None:
    bench.store.script += [say("refused", "a", charge=2), say("inserted", charge=9)]
    counts = bench.write(0, records())
    assert (counts.charged, bench.pacer.charges) == (11, [2, 9])


def test_what_was_charged_is_the_cost_of_what_comes_next_and_cuts_nothing(bench: Bench) -> None:
    def charging(store, rows):
        return Answer(behave(store, rows).verdicts, charge=7 if len(rows) == 3 else 5000)

    bench.store.always = charging
    whole = document(1, [member(1, number, f"m{number}") for number in range(10)])
    counts = bench.write(0, [record(0, whole)], cost="learned(per_row(2))")
    assert bench.pacer.costs == [6, 7, 7, 2], "the base at first, then the mean of requests of as many rows"
    assert (counts.cost, counts.charged, counts.requests) == (22, 5021, 4)
    assert bench.sql("SELECT cost FROM hr_dispatch ORDER BY at_ns") == [(6,), (7,), (7,), (2,)]


def test_a_learned_cost_above_the_capacity_is_the_capacity(bench: Bench) -> None:
    bench.store.always = say("inserted", charge=5000)
    whole = document(1, [member(1, number, f"m{number}") for number in range(6)])
    bench.write(0, [record(0, whole)], cost="learned(per_row(2))", headroom=0.1)
    assert bench.pacer.costs == [6, 900]


def test_a_wrong_schema_does_not_drain_a_topic(bench: Bench) -> None:
    with pytest.raises(CorruptInput):
        bench.write(0, [record(number, b"{}") for number in range(200)])
    assert bench.outbox.letters == []


@pytest.mark.parametrize("became", ["rejected", "refused"])
def test_without_the_acknowledgement_of_what_was_not_written_a_micro_batch_is_not_committed(
    bench: Bench, became: str
) -> None:
    """Of dead letters, and of records for the retry topic."""
    name = "outbox" if became == "rejected" else "retries"
    bench.store.script += [say(became, "a")] * (1 if became == "rejected" else 3)
    kept = getattr(bench, name)
    setattr(bench, name, Unheard())
    with pytest.raises(OutboxDown):
        bench.write(0, records())
    assert not bench.ledger.done(Batch("q", 0))
    setattr(bench, name, kept)
    bench.write(0, records())
    assert (bench.ledger.done(Batch("q", 0)), len(kept.letters)) == (True, 1)


@pytest.mark.parametrize("at", range(1, 5))
def test_killed_at_any_call_and_repeated_nothing_is_lost_or_told_otherwise(
    bench: Bench, tmp_path: Path, at: int
) -> None:
    troubles = {"a": "refused", "b.x": "rejected"}

    def trouble(store, rows):
        if len(store.calls) == at and not killed:
            killed.append(1)
            raise Killed
        return Answer(
            [say(troubles[r.metric])(store, [r]).verdicts[0] if r.metric in troubles else store.take(r) for r in rows]
        )

    (tmp_path / "clean").mkdir()
    clean = Bench(tmp_path / "clean")
    killed = [1]
    clean.store.always = trouble
    expected = clean.write(0, records())
    killed = []
    bench.store.always = trouble
    with pytest.raises(Killed):
        bench.write(0, records())
    assert (bench.outbox.letters, bench.retries.letters) == ([], [])
    counts = bench.write(0, list(reversed(records())))
    counts.inserted, counts.repeats = counts.inserted + counts.repeats, 0  # of the request whose answers were lost
    assert counts == expected
    assert bench.store.rows == clean.store.rows
    assert bench.outbox.letters == clean.outbox.letters
    assert bench.retries.letters == clean.retries.letters


def test_killed_before_the_commit_what_is_recorded_does_not_go_out_again(bench: Bench) -> None:
    bench.store.script += [say("refused", "a")] * 3

    real, dying = bench.retries, Dying()
    bench.retries = dying  # type: ignore[assignment]
    with pytest.raises(Killed):
        bench.write(0, records())
    calls = len(bench.store.calls)
    bench.retries = real
    counts = bench.write(0, records())
    check(counts)
    assert len(bench.store.calls) == calls == 4
    assert (counts.inserted, counts.rows_postponed, counts.retries) == (3, 1, 2)
    assert real.letters == dying.letters[0], "the same record, with the same jitter"


def test_with_a_configured_key_only_the_newest_row_of_each_goes_out(bench: Bench) -> None:
    values = [
        document(1, [member(1, 1, "a"), member(3, 3, "a"), member(2, 2, "b")], closed_at=10),
        document(2, [member(2, 9, "a"), member(2, 8, "b")], closed_at=11),
    ]
    found = [record(number, value) for number, value in enumerate(values)]
    counts = bench.write(0, found, key=["source", "metric"])
    check(counts)
    assert [(row.metric, row.value) for _, rows in bench.store.calls for row in rows] == [("a", 3.0), ("b", 8.0)]
    assert (counts.rows, counts.repeats) == (5, 3)
    bench.store.calls.clear()
    bench.ledger = type(bench.ledger)(Database(f"sqlite://{bench.folder}/other.db"), "w")
    bench.ledger.prepare()
    bench.write(0, found, key=["source", "metric"], version="closed_at")
    assert [row.value for _, rows in bench.store.calls for row in rows] == [9.0, 8.0]


def test_behind_a_rejected_row_the_next_older_one_of_its_key_goes_out(bench: Bench) -> None:
    found = [record(number, document(number, [member(1, number, "a")], closed_at=number)) for number in range(1, 5)]
    found.append(record(5, document(5, [member(1, 9, "b")])))
    bench.store.always = lambda store, rows: Answer(
        [Verdict("rejected", "too much") if row.metric == "a" and row.value > 2 else store.take(row) for row in rows]
    )
    real, bench.outbox = bench.outbox, Dying()  # type: ignore[assignment]
    with pytest.raises(Killed):
        bench.write(0, found)
    bench.outbox = real
    counts = bench.write(0, found)
    check(counts)
    went = [[(row.metric, row.value) for row in rows] for _, rows in bench.store.calls]
    assert went == [[("a", 4.0), ("b", 9.0)], [("a", 3.0)], [("a", 2.0)]], "once each, also over a kill"
    assert sorted(row.value for row in bench.store.rows.values()) == [2.0, 9.0]
    assert (counts.rows, counts.inserted, counts.repeats, counts.rows_refused, counts.requests) == (5, 2, 1, 2, 3)
    assert [json.loads(one.value)["offset"] for one in bench.outbox.letters] == [3, 4]


def test_the_older_row_is_that_of_the_configured_key_and_version(bench: Bench) -> None:
    found = [
        record(0, document(1, [member(3, 1, "a"), member(2, 2, "a"), member(1, 3, "b")], closed_at=10)),
        record(1, document(2, [member(1, 4, "a")], closed_at=11)),
    ]
    bench.store.always = lambda store, rows: Answer(
        [Verdict("rejected") if row.value in (1, 4) else store.take(row) for row in rows]
    )
    check(bench.write(0, found, key=["source", "metric"]))
    assert sent(bench) == [["a", "b"], ["a"]]
    assert sorted(row.value for row in bench.store.rows.values()) == [2.0, 3.0]
    bench.store.calls.clear()
    bench.ledger = type(bench.ledger)(Database(f"sqlite://{bench.folder}/other.db"), "w")
    bench.ledger.prepare()
    check(bench.write(0, found, key=["source", "metric"], version="closed_at"))
    assert [row.value for _, rows in bench.store.calls for row in rows] == [4.0, 3.0, 1.0, 2.0], "2 is as new as 1"


def test_one_bad_key_of_many_values_stops_neither_the_job_nor_takes_a_wave_for_each(bench: Bench) -> None:
    good = [member(1, 1, f"m{n}") for n in range(110)]
    found = [record(0, document(1, good))]
    found += [record(n, document(n + 1, [member(n, 500 + n, "bad")])) for n in range(1, 201)]
    bench.store.always = say("rejected", "bad")
    counts = bench.write(0, found, key=["source", "metric"], max=500)
    check(counts)
    assert [len(rows) for _, rows in bench.store.calls] == [111, *[1] * (WAVES - 1)]
    assert (counts.inserted, counts.rows_refused, counts.dead_letters) == (110, 200, {"sink_rejected": 200})
    details = Counter(json.loads(one.value)["detail"] for one in bench.outbox.letters)
    assert details == {
        "bad: told to": WAVES,
        f"bad: not sent: {WAVES} newer rows of its key were rejected": 200 - WAVES,
    }


def test_a_row_behind_one_that_is_late_and_then_rejected_is_written(bench: Bench) -> None:
    found = [record(n, document(n + 1, [member(1, n, "a")], closed_at=n)) for n in range(1, 4)]
    bench.store.script += [say("refused")] * 3
    counts = bench.write(0, found)
    check(counts)
    assert (counts.rows_postponed, counts.records_postponed, bench.store.rows) == (3, 3, {})
    bench.store.always = lambda store, rows: Answer(
        [Verdict("rejected") if row.value > 2 else store.take(row) for row in rows]
    )
    again = bench.write(1, back(bench.take_retries()))
    check(again)
    assert [row.value for row in bench.store.rows.values()] == [2.0]
    assert (again.inserted, again.rows_refused, again.repeats) == (1, 1, 1)
    assert [json.loads(one.value)["offset"] for one in bench.outbox.letters] == [3]
