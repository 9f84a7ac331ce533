"""The replay of a partition: what is judged, what is not, and how a range is written in the job file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.errors import ConfigError
from headrace_core.stage import Record
from headrace_spark.audit import Audit, Edge, Line, Plan, Replay, actual, digest, named, warm_up_ms
from headrace_spark.audit_report import Run, write
from headrace_spark.database import Database
from headrace_spark.jobs.audit_frames import records_of
from headrace_spark.ranges import Range, Span, chunks
from headrace_spark.settings import load
from tests.support.routed import STEP_MS, batches, routed
from tests.unit.spark.test_settings import write as write_job

CONFIG = BatchingConfig(window=50, timeout=200, dedup_horizon=1000)
BASE_MS = 1_000_000
LOG = list(routed(0, 1000, BASE_MS))


def replayed(log: list[Record], plan: Plan, chunk: int = 100) -> tuple[list[Line], Edge]:
    replay = Replay(CONFIG, plan)
    lines = [line for at in range(0, len(log), chunk) for line in replay.feed(log[at : at + chunk])]
    still, edge = replay.finish()
    return lines + still, edge


def sides(lines: list[Line]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in lines:
        found.setdefault(line.side, set()).add(line.id)
    return found


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_a_whole_log_gives_the_batches_of_the_stage_however_it_is_cut(chunk: int) -> None:
    lines, edge = replayed(LOG, Plan(0, 0, False, 0), chunk)
    made = {named(one.value or b"").id: digest(one.value or b"") for one in batches(LOG, CONFIG)}
    assert {line.id: line.digest for line in lines if line.side == "expected"} == made
    assert (edge.records, edge.judged, edge.next) == (1000, 1000, 1000)


def test_what_was_opened_in_the_warm_up_or_is_open_at_the_end_is_not_judged() -> None:
    first, end, warm = 500, 800, warm_up_ms(CONFIG) // STEP_MS
    lines, edge = replayed(LOG[first - warm : end], Plan(0, first, False, warm_up_ms(CONFIG)), 64)
    whole = {named(one.value or b"").id: one for one in batches(LOG, CONFIG)}
    judged = sides(lines)["expected"]
    closed = {name for name, one in whole.items() if first <= emitted(one.headers) < end}
    early = {name for name in closed if named(whole[name].value or b"").opened_at < BASE_MS + first * STEP_MS}
    assert judged == closed - early
    assert early
    assert early <= sides(lines)["unjudged"]
    bytes_of = {line.id: line.digest for line in lines if line.side == "expected"}
    assert bytes_of == {name: digest(whole[name].value or b"") for name in judged}
    later = [name for name, one in whole.items() if emitted(one.headers) >= end]
    still = {name for name in later if named(whole[name].value or b"").opened_at < BASE_MS + end * STEP_MS}
    assert still
    assert still <= sides(lines)["unjudged"]
    assert (edge.from_ms, edge.to_ms) == (BASE_MS + (first - 1) * STEP_MS, BASE_MS + (end - 1) * STEP_MS)


def emitted(headers: tuple[tuple[str, bytes], ...]) -> int:
    return int(dict(headers)["id"].split(b":")[2])


def test_a_log_that_begins_inside_the_warm_up_is_judged_once_its_clock_went_on_for_so_long() -> None:
    _, edge = replayed(LOG[300:], Plan(0, 320, True, warm_up_ms(CONFIG)))
    assert edge.from_ms == BASE_MS + 299 * STEP_MS + warm_up_ms(CONFIG)
    _, edge = replayed(LOG[300:340], Plan(0, 320, True, warm_up_ms(CONFIG)))
    assert (edge.records, edge.judged) == (40, 0)


EDGE = Edge(0, 1000, 2000, 50, 40, 30)


@pytest.mark.parametrize(
    ("opened_ms", "emitted_by", "side"),
    [
        (1000, 20, "outside"),
        (1001, 20, "actual"),
        (1999, None, "actual"),
        (2000, 49, "actual"),
        (2000, 50, "outside"),
        (2000, None, "outside"),
        (2001, 49, "outside"),
    ],
)
def test_a_batch_that_the_engine_does_not_know_is_extra_if_opened_inside_the_range(
    opened_ms: int, emitted_by: int | None, side: str
) -> None:
    headers = () if emitted_by is None else (("id", b"batching:0:%d:0" % emitted_by),)
    value = b'{"id":"i","source":"s","opened_at":%d}' % opened_ms
    assert actual(Record(0, 7, 1, b"s", value, headers), EDGE).side == side
    assert actual(Record(0, 7, 1, b"s", value, headers), None).side == "outside"


def test_what_cannot_be_read_is_extra() -> None:
    line = actual(Record(0, 7, 1, b"s", b"{", ()), EDGE)
    assert (line.id, line.source, line.side) == ("unreadable at offset 7", "s", "actual")


def test_records_come_from_arrow_with_all_their_headers_in_order() -> None:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers = [[("a", b"1"), ("a", b"2")], None, [("b", None)]]
    rows = {
        "partition": [3, 3, 3], "offset": [1, 2, 5], "append_ms": [10, 20, 30], "key": [b"k", None, b""],
        "value": [b"v", b"", None],
    }  # fmt: skip
    batch = pa.RecordBatch.from_pydict(
        {**rows, "headers": pa.array([h and [dict(zip(("key", "value"), p, strict=True)) for p in h] for h in headers],
                                     type=pa.list_(header))}
    )  # fmt: skip
    assert records_of(batch) == [
        Record(3, 1, 10, b"k", b"v", (("a", b"1"), ("a", b"2"))),
        Record(3, 2, 20, None, b"", ()),
        Record(3, 5, 30, b"", None, (("b", b""),)),
    ]
    assert records_of(batch.slice(2)) == [Record(3, 5, 30, b"", None, (("b", b""),))]


def test_the_report_counts_by_source_and_keeps_what_is_not_equal(tmp_path: Path) -> None:
    database = Database(f"sqlite://{tmp_path}/state.db")
    counts = [{"equal": 2, "missing": 0, "extra": 0, "different": 1}, {"equal": 1, "missing": 3, "extra": 0}]
    sources = [("a", counts[0]), ("b", {**counts[1], "different": 0})]
    for run in ("r1", "r2"):
        totals = write(database, Run(run, "w", 5, "{}", "[]"), sources, [(0, "i", "a", "different")])
        assert totals == {"equal": 3, "missing": 3, "extra": 0, "different": 1}
    with database.transaction() as at:
        assert at.rows("SELECT run, equal, missing FROM hr_audit ORDER BY run") == [("r1", 3, 3), ("r2", 3, 3)]
        assert at.rows("SELECT count(*) FROM hr_audit_source")[0] == (4,)
        assert at.rows("SELECT run, id, verdict FROM hr_audit_difference ORDER BY run")[0] == ("r1", "i", "different")


def job(folder: Path, text: str) -> Path:
    file = write_job(folder)
    file.write_text(file.read_text() + text)
    return file


def test_the_tables_are_read_with_times_and_offsets(tmp_path: Path) -> None:
    found = load(
        job(
            tmp_path,
            "[audit]\nfrom_time = 2026-01-31T10:00:00Z\n[audit.batching]\nwindow = 20\n"
            '[backfill]\nname = "x"\nto_time = 2026-01-31T12:00:00+01:00\n'
            '[backfill.from_offsets]\n"headrace.batches-1" = 7\n',
        )
    )
    assert found.audit.from_time == datetime(2026, 1, 31, 10, tzinfo=UTC)
    assert (found.audit.config.window, found.audit.config.timeout) == (20, 1000)
    assert found.backfill.from_offsets == {"headrace.batches-1": 7}
    assert (found.backfill.weight, found.backfill.max_share, found.weight) == (1, 0.5, 4)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[audit]\nfrom_time = 2026-01-31T10:00:00\n", "audit.from_time"),
        ('[audit]\nfrom_time = "yesterday"\n', "audit.from_time"),
        ("[audit]\nfrom_time = 2026-01-31T10:00:00Z\nto_time = 2026-01-31T10:00:00Z\n", "audit.to_time"),
        ('[audit]\nfrom_offsets = {"headrace.batches-0" = 1}\n', "audit.from_offsets"),
        ('[audit]\nfrom_offsets = {"headrace.routed" = 1}\n', "audit.from_offsets"),
        ('[audit]\nfrom_offsets = {"headrace.routed-0" = -1}\n', "audit.from_offsets"),
        (
            '[audit]\nto_time = 2026-01-31T10:00:00Z\nto_offsets = {"headrace.routed-0" = 1}\n',
            "audit.to_offsets",
        ),
        (
            '[audit]\nfrom_offsets = {"headrace.routed-0" = 5}\nto_offsets = {"headrace.routed-0" = 1}\n',
            "audit.to_offsets",
        ),
        ('[audit]\nrouted = "a b"\n', "audit.routed"),
        ('[audit]\nbatches = "a b"\n', "audit.batches"),
        ("[audit]\nsurprise = 1\n", "surprise"),
        ("[audit.batching]\nsurprise = 1\n", "audit.batching.surprise"),
        ("[audit.batching]\ntimeout = 0\n", "audit.batching"),
        ('[audit.batching]\ntimeout = "1s"\n', "audit.batching"),
        ('[backfill]\nname = "a b"\n', "backfill.name"),
        ("[backfill]\nchunk_records = -1\n", "backfill.chunk_records"),
        ("[backfill]\nweight = 0\n", "backfill.weight"),
        ("[backfill]\nmax_share = 1.5\n", "backfill.max_share"),
        ('[backfill]\nfrom_offsets = {"headrace.routed-0" = 1}\n', "backfill.from_offsets"),
        ("[backfill]\nfrom_time = 1\n", "backfill.from_time"),
    ],
)
def test_a_wrong_field_of_a_table_is_named(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(job(tmp_path, text))
    assert field in str(caught.value)


def test_chunks_have_every_offset_once_and_go_on_in_order_in_each_partition() -> None:
    spans = [Span("a", 0, 5, 25), Span("a", 1, 0, 7), Span("b", 0, 3, 3)]
    parts = list(chunks(spans, 9))
    assert all(sum(map(len, part)) <= 9 for part in parts)
    for span in spans:
        own = [one for part in parts for one in part if (one.topic, one.partition) == (span.topic, span.partition)]
        offsets = [offset for one in own for offset in range(one.first, one.next)]
        assert offsets == list(range(span.first, span.next))
    assert list(chunks([], 9)) == []
    assert len(list(chunks(spans, 1))) == 20


def test_a_range_without_sides_is_good() -> None:
    Range().check("audit", ["t"])
    assert Audit().config == BatchingConfig()
