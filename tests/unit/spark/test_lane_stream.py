"""Lanes in stream mode beside a Spark of a few lines: state of the last commit, repeats, the same requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace_core.errors import ConfigError
from headrace_spark import capacity
from headrace_spark.checks import check
from headrace_spark.database import Database
from headrace_spark.exits import CorruptInput
from headrace_spark.jobs import couriers
from headrace_spark.jobs.stream_lanes import StreamLanes
from headrace_spark.lane_stream import LaneWork, Memory, SeenDocuments, step
from headrace_spark.lanes import LaneSender
from headrace_spark.ledger import Ledger
from headrace_spark.patience import Patience
from headrace_spark.sending import Carrier
from headrace_spark.settings import Settings
from headrace_spark.sinks.callables import CallableSink, Context, Result
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.records import Record, Report, report
from headrace_spark.transforms.rows import Row
from tests.unit.spark.fakes import AtOnce, Killed, Outbox, document, job, member

DESTINATION: list[Spark] = []
LATENESS_MS, LINGER_MS, TRIGGER_MS, MAX = 100, 1000, 500, 5


def deliver(rows: Sequence[Row], context: Context) -> Result:
    return DESTINATION[-1].taken(rows, context)


deliver.idempotent = True  # type: ignore[attr-defined]


class Here(Carrier):
    """Sends from this process."""

    def on(self, frame: object) -> None:
        """No Spark is needed."""


class Spark:
    """Micro-batches over the records of some partitions. What is not committed is repeated with the same timestamp."""

    def __init__(self, folder: Path, log: Sequence[Report], kills: random.Random | None = None, **changes: Any) -> None:
        plain = {"lateness_ms": LATENESS_MS, "linger_ms": LINGER_MS, "max": MAX, "mode": "lanes", **changes}
        self.settings: Settings = job(
            sink="call:tests.unit.spark.test_lane_stream:deliver", state_dsn=f"sqlite://{folder}/state.db", **plain
        )
        check(self.settings)
        self.database = Database(self.settings.state_dsn)
        self.ledger = Ledger(self.database, "w")
        self.ledger.prepare()
        self.log, self.kills, self.outbox = log, kills, Outbox()
        self.memories: dict[tuple[str, int], bytes] = {}
        self.due: dict[tuple[str, int], int] = {}
        self.calls: list[tuple[str, int, list[Row]]] = []
        self.batch_id = self.now_ms = self.hits = self.late = 0
        self.way = self._way()

    def _way(self) -> StreamLanes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(capacity, "in_every_process", lambda _: AtOnce)
            patch.setattr(couriers, "SparkCourier", self._courier)
            DESTINATION.append(self)
            way = StreamLanes(self.settings, self.ledger, self.outbox, Patience(1), lambda: None)
        way.prepare()
        return way

    def _courier(self, settings: Settings, ledger: Ledger, *_: object) -> Here:
        patience = Patience(1)
        sender = LaneSender(settings, ledger, CallableSink(settings.sink), self.outbox, AtOnce(), patience)
        return Here(sender, ledger, patience)

    def taken(self, rows: Sequence[Row], context: Context) -> Result:
        self.calls.append((context.request_id, context.partition, list(rows)))
        self._die(0.1)
        return Result()

    def run(self, sizes: Sequence[int]) -> None:
        """Micro-batches of so many records; then some without any, until nothing is due."""
        at = 0
        for size in sizes:
            self.micro_batch(self.log[at : at + size])
            at += size
        assert at >= len(self.log)
        while self.due:
            self.micro_batch([])

    def micro_batch(self, records: Sequence[Report]) -> None:
        self.now_ms += TRIGGER_MS
        while True:
            try:
                memories, due = self._once(records)
                self._die(0.4)  # after the ledger, before Spark's commit
            except Killed:
                self.way = self._way()
            else:
                break
        self.memories, self.due = memories, due
        self.batch_id += 1

    def _once(self, records: Sequence[Report]) -> tuple[dict[tuple[str, int], bytes], dict[tuple[str, int], int]]:
        memories, due, steps = dict(self.memories), dict(self.due), []
        work = LaneWork("w", self.settings.state_dsn, MAX, LATENESS_MS, LINGER_MS, self.settings.seen_retention_ms)
        for place in sorted(
            {(one.topic, one.partition) for one in records} | {p for p, at in due.items() if at < self.now_ms}
        ):
            own = [one for one in records if (one.topic, one.partition) == place]
            random.Random(self.now_ms).shuffle(own)  # a shuffle keeps no order
            raw = memories.get(place)
            memory = Memory() if raw is None else msgspec.msgpack.decode(raw, type=Memory)
            ids = {one.taken.id for one in own if one.taken is not None}
            seen = SeenDocuments(self.database, work.seen_retention_ms).before("q", self.batch_id, ids, self.now_ms)
            stepped = step(work, place, memory, own, seen, self.now_ms)
            memories[place] = msgspec.msgpack.encode(stepped.memory)
            due.pop(place, None)
            if stepped.due_ms is not None:
                due[place] = stepped.due_ms
            self.late += stepped.step.late
            steps.append(msgspec.msgpack.encode(stepped.step))
        hit = self.ledger.done(Batch("q", self.batch_id))
        counts = self.way.write(Frame(steps), Batch("q", self.batch_id))
        self.hits += hit
        assert hit == (counts is None), "what the ledger has is not counted again, but as a hit"
        return memories, due

    def _die(self, share: float) -> None:
        if self.kills is not None and self.kills.random() < share:
            raise Killed


class Frame:
    """As much of a frame as the driver uses."""

    def __init__(self, steps: list[bytes]) -> None:
        self.steps = steps

    def toArrow(self) -> Frame:
        return self

    def column(self, name: str) -> Frame:
        assert name == "step"
        return self

    def to_pylist(self) -> list[bytes]:
        return self.steps


def log(count: int = 60, seed: int = 1, partitions: int = 2) -> list[Report]:
    """Documents whose times rise with some jitter, some twice, some that are none, one far too late."""
    dice = random.Random(seed)
    values = [
        document(n, [member(1000 + n * 20 + dice.randrange(60), n) for _ in range(3)], source=f"te/device/{n % 2}//")
        for n in range(count)
    ]
    values[10], values[-1] = b"{", document(900, [member(1, 0)], source=f"te/device/{(count - 1) % 2}//")
    values[20] = values[18]
    return [
        report(Record("t", offset % partitions, offset, offset, None, value, []), 100_000)
        for offset, value in enumerate(values)
    ]


def rows_of(found: Sequence[Report]) -> set[Row]:
    from headrace_spark.transforms.rows import rows

    return {row for one in found if one.taken is not None for row in rows(one.taken)}


@pytest.mark.parametrize("seed", range(8))
def test_every_row_goes_out_once_in_order_of_time_over_kills_and_repeats(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.randrange(12) for _ in range(40)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = Spark(tmp_path / "a", log())
    plain.run(sizes)
    spark = Spark(tmp_path / "b", log(), kills=dice)
    spark.run(sizes)
    assert spark.hits > 0
    once: dict[str, tuple[str, int, list[Row]]] = {}
    for call in spark.calls:
        assert once.setdefault(call[0], call) == call, "the same request under the same id"
    assert list(once.values()) == plain.calls, "kills change nothing"
    assert {row for _, _, rows in plain.calls for row in rows} == rows_of(log())
    behind = 0
    for lane in range(2):
        highest = 0
        for times in [[row.time_ms for row in rows] for _, partition, rows in plain.calls if partition == lane]:
            behind += sum(time < highest for time in times)
            highest = max(highest, *times)
    assert 1 <= behind <= plain.late
    assert plain.late < 10
    totals = spark.ledger.totals()
    assert (totals.records, totals.documents, totals.documents_repeated, totals.rejected) == (60, 58, 1, 1)
    assert totals.rows == totals.inserted == sum(len(rows) for _, _, rows in plain.calls)
    assert totals == plain.ledger.totals() or totals.retries


def test_the_largest_share_of_a_source_is_measured_over_all_lanes(tmp_path: Path) -> None:
    sizes = {(0, "te/a"): 6, (0, "te/b"): 2, (1, "te/c"): 4}
    found = [
        report(
            Record("t", lane, n, 0, None, document(n, [member(1, {f"l{i}": i for i in range(size)})], source), []),
            9_999,
        )
        for n, ((lane, source), size) in enumerate(sizes.items())
    ]
    spark = Spark(tmp_path, [])
    spark.micro_batch(found)
    assert spark.way.pacer.skew == 6 / 12


def test_rows_wait_for_their_time_and_a_request_for_its_linger(tmp_path: Path) -> None:
    first = report(Record("t", 0, 5, 0, None, document(1, [member(1000, 1.0)]), []), 100_000)
    six, one = member(1000, {f"l{n}": n for n in range(6)}), member(1000 + LATENESS_MS, 1.0)
    later = report(Record("t", 0, 9, 0, None, document(2, [six, one]), []), 100_000)
    spark = Spark(tmp_path, [])
    spark.micro_batch([first])
    assert (spark.calls, spark.due) == ([], {("t", 0): TRIGGER_MS + LINGER_MS})
    spark.micro_batch([later])  # the first time is complete, and more than one request; the second is not full
    assert [(call[0], len(call[2])) for call in spark.calls] == [("t-0:9:9:0", MAX)]
    while spark.due:
        spark.micro_batch([])
    assert [call[0] for call in spark.calls] == ["t-0:9:9:0", "t-0:9:9:1"], "named by the latest records, counting on"
    assert spark.ledger.totals().inserted == 8
    with spark.database.transaction() as at:
        rows = at.rows("SELECT batch_id, records FROM hr_batch_ledger ORDER BY batch_id")
    assert rows[:2] == [(0, 1), (1, 1)]
    assert len(rows) == 3 < spark.batch_id, "nothing is written down where nothing was done"


def test_a_document_is_a_repeat_within_the_retention_and_for_this_query_alone(tmp_path: Path) -> None:
    database = Database(f"sqlite://{tmp_path}/state.db")
    seen = SeenDocuments(database, 1000)
    seen.prepare()
    with database.transaction() as at:
        seen.record(at, "q", 4, ["a", "b"], 10_000)
    assert seen.before("q", 5, ["a", "c"], 11_000) == {"a"}
    assert seen.before("q", 4, ["a"], 10_000) == set(), "a repeat of the micro-batch itself does the same again"
    assert seen.before("q", 9, ["a"], 11_001) == set()
    assert seen.before("other", 9, ["a"], 10_500) == set()
    with database.transaction() as at:
        seen.record(at, "q", 9, ["a"], 11_001)
        assert at.rows("SELECT id, batch_id FROM hr_lane_seen") == [("a", 9)]
    assert seen.before("q", 5, [], 0) == set()


def test_too_much_that_is_refused_stops_it_before_anything_is_sent(tmp_path: Path) -> None:
    bad = [report(Record("t", n % 2, n, 0, None, b"{", []), 100_000) for n in range(120)]
    spark = Spark(tmp_path, bad)
    with pytest.raises(CorruptInput):
        spark.micro_batch(bad)
    assert spark.outbox.letters == []
    assert spark.ledger.totals().records == 0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"lateness_ms": -1}, "lateness_ms"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"available_now": True}, "available_now"),
        ({"max": 5000}, "cost"),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], field: str) -> None:
    sink = "call:tests.unit.spark.test_lane_stream:deliver"
    with pytest.raises(ConfigError, match=field):
        check(job(mode="lanes", sink=sink, **changes))
    check(job(mode="lanes", sink=sink, lane_mode="backlog", available_now=True))
