"""One micro-batch: killed anywhere and repeated, it has its effect once and its numbers add up."""

from __future__ import annotations

import base64
import json
import sqlite3
from pathlib import Path

import msgspec
import pytest

from headrace_schemas import validator
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.exits import CorruptInput
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import OutboxDown
from headrace_spark.patience import Patience
from headrace_spark.sinks.port import Batch, SinkDown
from headrace_spark.sinks.sqlite import SqliteSink
from headrace_spark.transforms.dead_letters import MAX_PAYLOAD, letter
from headrace_spark.transforms.records import report
from headrace_spark.writing import BatchWriter
from tests.unit.spark.fakes import AtOnce, Killed, Outbox, Unheard, Watched, document, job, member, record, reports

_BATCH = Batch("q", 0)


class Bench:
    """Everything around a BatchWriter; `writer` builds a new one, as a new process would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outbox = Outbox()
        self.slept: list[float] = []
        self.ledger = Ledger(Database(f"sqlite://{folder}/state.db"), "w")
        self.ledger.prepare()
        self.sink = Watched(SqliteSink(folder / "sink.db"))
        self.sink.prepare()

    def writer(self, **changes: object) -> BatchWriter:
        settings = job(**changes)
        patience = Patience(settings.sink_down_max_ms, sleep=self.slept.append)
        return BatchWriter(settings, self.ledger, self.sink, self.outbox, AtOnce(), patience)

    def sql(self, file: str, query: str) -> list[tuple]:
        with sqlite3.connect(self.folder / file) as db:
            return db.execute(query).fetchall()

    def stored(self) -> list[tuple]:
        return self.sql("sink.db", "SELECT metric, time_ms, value FROM measurements ORDER BY 1, 2")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def mixed() -> list:
    return reports(
        document(1, [member(1, {"a": 1, "b": True, "unit": "C"}), member(2, None), member(3, 3.5)]),
        b"not json",
        document(2, [member(1, {"a": 7}), *[member(t, t) for t in range(10, 16)]], closed_at=60),
        document(1, [member(1, {"a": 1, "b": True, "unit": "C"}), member(2, None), member(3, 3.5)]),
    )


def check(counts: Counts) -> None:
    assert counts.records == counts.ticks + counts.rejected + counts.documents + counts.documents_repeated
    assert counts.members == counts.members_taken + counts.members_rejected
    assert counts.rows == counts.inserted + counts.replaced + counts.repeats
    assert sum(counts.dead_letters.values()) == counts.rejected + counts.members_rejected


def test_a_micro_batch_is_written_and_its_numbers_add_up(bench: Bench) -> None:
    counts = bench.writer().write(_BATCH, mixed())
    check(counts)
    assert (counts.documents, counts.documents_repeated, counts.rejected) == (2, 1, 1)
    assert (counts.members, counts.members_rejected, counts.members_repeated) == (10, 1, 3)
    assert (counts.rows, counts.inserted, counts.repeats, counts.text_leaves_dropped) == (10, 9, 1, 1)
    assert counts.dead_letters == {"null_value": 1, "not_json": 1}
    assert ("env.a", 1, 7.0) in bench.stored()
    assert len(bench.stored()) == 9
    assert bench.ledger.totals() == counts


@pytest.mark.parametrize(
    ("moment", "write"), [*[(moment, n) for moment in ("before", "after") for n in (1, 2, 3)], ("forget", 3)]
)
def test_killed_anywhere_and_repeated_it_has_its_effect_once(bench: Bench, moment: str, write: int) -> None:
    clean = Bench(bench.folder / "clean")
    expected = clean.writer().write(_BATCH, mixed())
    bench.sink.fail = {(moment, write): Killed()}
    with pytest.raises(Killed):
        bench.writer().write(_BATCH, mixed())
    after = bench.writer()
    if not after.done(_BATCH):
        after.write(_BATCH, list(reversed(mixed())))
    assert after.done(_BATCH)
    assert bench.sql("sink.db", "SELECT * FROM hr_request") == []
    assert bench.ledger.totals() == expected
    assert bench.stored() == clean.stored()
    assert {tuple(one.headers) for one in bench.outbox.letters} == {tuple(one.headers) for one in clean.outbox.letters}
    assert {one.value for one in bench.outbox.letters} == {one.value for one in clean.outbox.letters}


def test_a_request_that_was_written_costs_no_capacity_again(bench: Bench) -> None:
    bench.sink.fail = {("after", 2): Killed()}
    with pytest.raises(Killed):
        bench.writer().write(_BATCH, mixed())
    bench.writer().write(_BATCH, mixed())
    dispatched = bench.sql("state.db", "SELECT cost, rows FROM hr_dispatch")
    assert dispatched == [(3, 3), (3, 3), (3, 3)]


def test_without_the_acknowledgement_of_its_dead_letters_a_micro_batch_is_not_committed(bench: Bench) -> None:
    kept, bench.outbox = bench.outbox, Unheard()  # type: ignore[assignment]
    with pytest.raises(OutboxDown):
        bench.writer().write(_BATCH, mixed())
    assert not bench.ledger.done(_BATCH)
    bench.outbox = kept
    assert bench.writer().write(_BATCH, mixed()).dead_letters == {"null_value": 1, "not_json": 1}
    assert len(kept.letters) == 2


def test_documents_of_an_earlier_micro_batch_are_repeats(bench: Bench) -> None:
    first = bench.writer().write(_BATCH, mixed())
    again = bench.writer().write(Batch("q", 1), mixed())
    assert (again.documents, again.documents_repeated, again.rows) == (0, 3, 0)
    assert bench.sql("state.db", "SELECT count(*) FROM hr_dispatch") == [(first.requests,)]
    check(bench.ledger.totals())


def test_a_later_document_replaces_an_older_row(bench: Bench) -> None:
    bench.writer().write(_BATCH, reports(document(1, [member(1, 1)], closed_at=10)))
    counts = bench.writer().write(Batch("q", 1), reports(document(2, [member(1, 2)], closed_at=11)))
    older = bench.writer().write(Batch("q", 2), reports(document(3, [member(1, 3)], closed_at=9)))
    assert (counts.replaced, older.repeats) == (1, 1)
    assert bench.stored() == [("env", 1, 2.0)]
    check(bench.ledger.totals())


def test_a_wrong_schema_does_not_drain_a_topic(bench: Bench) -> None:
    with pytest.raises(CorruptInput):
        bench.writer().write(_BATCH, reports(*[b"{}"] * 51, *[document(n, [member(n, 1)]) for n in range(49)]))
    assert bench.outbox.letters == []
    assert bench.stored() == []
    half = reports(*[b"{}"] * 50, *[document(n, [member(n, 1)]) for n in range(50)])
    assert bench.writer().write(_BATCH, half).rejected == 50
    assert bench.writer().write(Batch("q", 1), reports(*[b"{}"] * 99)).rejected == 99


def test_a_sink_that_is_down_for_a_while_loses_nothing(bench: Bench) -> None:
    bench.sink.fail = {("before", 1): SinkDown("down"), ("before", 2): SinkDown("down")}
    counts = bench.writer().write(_BATCH, reports(document(1, [member(1, 1)])))
    assert counts.inserted == 1
    assert bench.slept == [0.5, 1.0]
    assert len(bench.sql("state.db", "SELECT * FROM hr_dispatch")) == 3


def test_a_sink_that_stays_down_fails_the_micro_batch(bench: Bench) -> None:
    bench.sink.fail = {("before", n): SinkDown("down") for n in range(1, 10)}
    with pytest.raises(SinkDown):
        bench.writer(sink_down_max_ms=3_000).write(_BATCH, reports(document(1, [member(1, 1)])))
    assert not bench.ledger.done(_BATCH)


def test_a_row_above_the_capacity_is_refused_with_its_member(bench: Bench) -> None:
    settings = job(cost="per_kib(400) + per_row(1)", capacity=1000)
    assert settings.dearest is not None
    whole = document(1, [member(1, 1, "m" * 1990), member(2, {"a": 2, "b": 3}), member(3, 3, "k")])
    found = [report(record(0, whole), 100_000, settings.dearest)]
    counts = bench.writer(cost="per_kib(400) + per_row(1)").write(_BATCH, found)
    assert (counts.members_taken, counts.members_rejected, counts.inserted) == (2, 1, 3)
    assert counts.dead_letters == {"too_expensive": 1}
    assert json.loads(bench.outbox.letters[0].value)["element"] == 0
    assert counts.cost == 403


def test_ticks_are_skipped_and_dead_letters_name_their_place(bench: Bench) -> None:
    tick = report(record(0, b"", [("kind", b"tick")]), 1000)
    bad = report(record(7, b"\xff", [("receipt_time", b"123"), ("id", b"x")]), 1000)
    counts = bench.writer().write(_BATCH, [tick, bad])
    assert (counts.records, counts.ticks, counts.rejected) == (2, 1, 1)
    [letter] = bench.outbox.letters
    assert letter.headers == [("id", b"w:0:7"), ("stage", b"spark.w")]
    assert letter.key == b"te/device/a//"
    found = json.loads(letter.value)
    assert {name: found[name] for name in ("reason", "root", "topic", "payload_base64", "receipt_time", "lost_at")} == {
        "reason": "not_utf8",
        "root": "te",
        "topic": "headrace.batches",
        "payload_base64": "/w==",
        "receipt_time": 123,
        "lost_at": 1007,
    }
    assert (found["partition"], found["offset"], found["job"], found["attempts"]) == (0, 7, "w", 1)
    assert found["headers"] == {"receipt_time": "123", "id": "x"}


@pytest.mark.parametrize(
    ("headers", "skipped"),
    [
        ([("kind", b"tick")], True),
        ([("kind", b"flush")], True),
        ([("kind", b"tick"), ("kind", b"other")], False),
        ([("kind", b"other"), ("kind", b"flush")], True),
        ([("kind", None)], False),
        ([("Kind", b"tick"), ("other", b"tick")], False),
        ([], False),
    ],
)
def test_ticks_and_flushes_are_skipped_by_their_header_alone(headers: list, skipped: bool) -> None:
    for value in (document(1, [member(1, 1)]), b"\xff", None):
        assert report(record(0, value, headers), 1000).skipped is skipped


def test_a_dead_letter_has_the_partition_and_the_time_of_receipt_that_its_record_tells_last() -> None:
    def told(*headers: tuple[str, bytes | None]) -> tuple[int, int, int]:
        at = msgspec.structs.replace(record(4, b"{", headers), partition=3)
        found = json.loads(letter(at, "w", "not_json", "").value)
        assert dict(letter(at, "w", "not_json", "").headers)["id"] == b"w:3:4"
        return found["partition"], found["receipt_time"], found["lost_at"]

    assert told() == (3, 1004, 1004), "without a header: when the topic got it"
    assert told(("receipt_time", b"5"), ("receipt_time", b"6")) == (3, 6, 1004)
    assert told(("receipt_time", b"5"), ("receipt_time", b"soon")) == (3, 5, 1004)
    assert told(("receipt_time", b"9" * 19), ("receipt_time", None)) == (3, 1004, 1004)


@pytest.mark.parametrize(
    ("start", "shown"), [(b"", "payload"), (b"a", "payload"), (b"ab", "payload"), (b"\xff", "payload_base64")]
)
def test_a_cut_through_a_character_leaves_a_text_a_text(start: bytes, shown: str) -> None:
    whole = start + "中".encode() * 200_000
    found = json.loads(letter(record(0, whole), "w", "not_json", "").value)
    assert found["truncated"] is True
    assert list(validator("dead-letter").iter_errors(found)) == []
    kept = found[shown].encode() if shown == "payload" else base64.b64decode(found[shown])
    assert whole.startswith(kept)
    assert len(kept) > MAX_PAYLOAD - 3


def test_a_long_payload_is_cut_and_says_so(bench: Bench) -> None:
    bench.writer().write(_BATCH, [report(record(0, b"x" * (512 * 1024 + 1)), 10_000_000)])
    found = json.loads(bench.outbox.letters[0].value)
    assert list(validator("dead-letter").iter_errors(found)) == []
    assert len(found["payload"]) == 512 * 1024
    assert found["truncated"] is True
