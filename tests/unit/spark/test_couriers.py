"""The stage of tasks that sends, beside a Spark of a few lines: any number of tasks, repeats, and their reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from headrace_core.errors import ConfigError
from headrace_spark.database import Database, StateDown
from headrace_spark.exits import Stalled, Superseded
from headrace_spark.faults import NO_FAULTS
from headrace_spark.jobs import watching
from headrace_spark.jobs.couriers import SparkCourier
from headrace_spark.ledger import Ledger
from headrace_spark.seen import WatchedAnswers
from headrace_spark.sending import Packed
from headrace_spark.settings import Settings
from headrace_spark.sinks.callables import Context
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.rows import Request, Row
from tests.unit.spark.fakes import AtOnce, job

BATCH = Batch("q", 0)
CALLS: list[tuple[str, int, int, list[Row]]] = []
TROUBLE: list[BaseException] = []
_TURN = threading.Lock()


def deliver(rows: Sequence[Row], context: Context) -> None:
    """The sink of these tests."""
    with _TURN:
        CALLS.append((context.request_id, context.partition, threading.get_ident(), list(rows)))
        if TROUBLE:
            raise TROUBLE.pop()


class Spark:
    """Runs each task up to three times, as Spark does; `tasks` counts them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.tasks, self.attempts = patch, 0, 0
        self.sparkSession = SimpleNamespace(sparkContext=self)

    def parallelize(self, blobs: list[bytes], count: int) -> Spark:
        assert len(blobs) == count
        self.blobs, self.tasks = blobs, count
        return self

    def mapPartitionsWithIndex(self, run: Callable[[int, Iterable[bytes]], Iterable[bytes]]) -> Spark:
        self.run = run
        return self

    def collect(self) -> list[bytes]:
        return [blob for part, blob in enumerate(self.blobs) for blob in self._task(part, blob)]

    def _task(self, part: int, blob: bytes) -> list[bytes]:
        for attempt in range(3):
            context = SimpleNamespace(get=lambda attempt=attempt: SimpleNamespace(attemptNumber=lambda: attempt))
            self.patch.setattr(pyspark, "TaskContext", context)
            self.attempts += 1
            try:
                return list(self.run(part, [blob]))
            except ValueError:
                continue
        raise RuntimeError("a task failed again and again")


class Bench:
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **changes: object) -> None:
        CALLS.clear()
        TROUBLE.clear()
        plain: dict[str, object] = {"mode": "lanes", "state_dsn": f"sqlite://{folder}/state.db"}
        sink = "call:tests.unit.spark.test_couriers:deliver"
        self.settings: Settings = job(**{"sink": sink, **plain, **changes})
        self.ledger = Ledger(Database(self.settings.state_dsn), "w")
        self.ledger.prepare()
        self.spark, self.pacer, self.advanced = Spark(patch), WatchedAnswers(AtOnce()), [0]
        self.run = f"{folder}"
        self.ledger.claim(self.run)

    def carry(self, queues: Sequence[Sequence[Packed]]) -> Any:
        one = SparkCourier(self.settings, self.ledger, self.run, AtOnce, self.pacer, NO_FAULTS, lambda: None)
        one.on(self.spark)
        return one.carry(BATCH, queues)


def lanes(count: int = 5, each: int = 4) -> list[list[Packed]]:
    def one(lane: int, number: int) -> Packed:
        row = Row("te/device/a//", f"m{lane}", number, 1, "0" * 32, 1.0, False)
        return Packed("t", lane, 0, Request(f"{lane}:{number}", [row], 1))

    return [[one(lane, number) for number in range(each)] for lane in range(count)]


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_the_requests_are_the_same_whatever_the_number_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    bench = Bench(tmp_path, monkeypatch, master=f"local[{cores}]")
    found = bench.carry(lanes())
    assert bench.spark.tasks == min(cores, 5)
    assert found.ends == {one.request.id: "" for own in lanes() for one in own} == bench.ledger.sent(BATCH)
    expected = sorted((one.request.id, one.partition, one.request.rows) for own in lanes() for one in own)
    assert sorted((name, partition, rows) for name, partition, _, rows in CALLS) == expected
    for lane in range(5):
        assert [name for name, partition, _, _ in CALLS if partition == lane] == [f"{lane}:{n}" for n in range(4)]
    assert bench.pacer.take().answers == {"done": 20}, "what tasks saw counts in the driver"
    assert bench.pacer.used() == 20


def test_a_task_that_is_repeated_goes_on_and_its_first_try_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, master="local[1]", max_concurrent_batches=1)
    TROUBLE.append(ValueError("a defect"))
    found = bench.carry(lanes(2))
    assert (bench.spark.attempts, len(found.ends)) == (2, 8)
    assert [name for name, *_ in CALLS] == ["0:0", *(one.request.id for own in lanes(2) for one in own)]
    seen = bench.pacer.take()
    assert (seen.answers, seen.estimated) == ({"done": 8}, 8)


@pytest.mark.parametrize("error", [ConfigError("sink", "401"), Stalled("paused")])
def test_an_error_of_the_job_ends_the_stage_without_trying_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    bench = Bench(tmp_path, monkeypatch, master="local[2]", max_concurrent_batches=1)
    TROUBLE.append(error)
    with pytest.raises(type(error), match=str(error)):
        bench.carry(lanes(1))
    assert bench.spark.attempts == 1
    assert len(bench.carry(lanes(1)).ends) == 4


BEGUN = threading.Event()
WAITED: list[bool] = []


def deliver_or_wait(rows: Sequence[Row], context: Context) -> None:
    """Fails with one request, and waits with the other until it is told that nobody wants it any more."""
    if rows[0].metric == "m0":
        assert BEGUN.wait(60)
        raise ValueError("a defect")
    BEGUN.set()
    WAITED.append(context.cancelled.wait(60))


def test_a_function_at_work_is_told_that_its_task_goes_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BEGUN.clear()
    WAITED.clear()
    sink = "call:tests.unit.spark.test_couriers:deliver_or_wait"
    bench = Bench(tmp_path, monkeypatch, mode="keyed", sink=sink, master="local[1]", max_concurrent_batches=2)
    with pytest.raises(RuntimeError, match="again and again"):
        bench.carry(lanes(2, 1))
    assert WAITED == [True]


def test_a_stage_of_an_earlier_start_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, monkeypatch)
    bench.ledger.claim("a later start")
    with pytest.raises(Superseded):
        bench.carry(lanes())
    assert CALLS == []


def test_a_function_that_is_not_there_is_a_wrong_job_file_in_a_task_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch, sink="call:tests.unit.spark.test_couriers:nobody")
    with pytest.raises(ConfigError, match="sink"):
        bench.carry(lanes())


def test_progress_is_told_while_tasks_are_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that works for long: the driver hears of the requests that have ended, and of nothing while none does."""
    monkeypatch.setattr(watching, "LOOK_S", 0.01)
    bench, told = Bench(tmp_path, monkeypatch), threading.Semaphore(0)
    one = SparkCourier(bench.settings, bench.ledger, bench.run, AtOnce, bench.pacer, NO_FAULTS, told.release)

    class Stage(Spark):
        def collect(self) -> list[bytes]:
            assert told.acquire(timeout=60), "the first look"
            bench.ledger.record_sent(BATCH, "a", "")
            assert told.acquire(timeout=60), "another number"
            assert not told.acquire(timeout=0.1), "the same number is no progress"
            return []

    one.on(Stage(monkeypatch))
    one.carry(BATCH, lanes(1))


def test_a_store_that_is_down_meanwhile_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LOOK_S", 0.01)
    answers, told = iter([StateDown("away"), 5]), threading.Event()

    def look() -> int:
        found = next(answers, 5)
        if isinstance(found, StateDown):
            raise found
        return found

    with watching.watching(look, told.set):
        assert told.wait(60)
