"""One lease client and one batcher for each Python worker process, which rest when a task ends (spark-writer.md 6)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from headrace_spark.database import Database
from headrace_spark.faults import NO_FAULTS
from headrace_spark.jobs import couriers, frames
from headrace_spark.jobs.couriers import SendWork, _report
from headrace_spark.jobs.frames import stager
from headrace_spark.ledger import Ledger
from headrace_spark.sinks.port import Batch
from headrace_spark.sinks.staging import Work
from headrace_spark.transforms.costs import Cost
from headrace_spark.transforms.rows import Bounds
from tests.unit.spark.fakes import AtOnce, job


class Leased(AtOnce):
    """Keeps what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def expect(self) -> None:
        self.words.append("expect")

    def rest(self) -> None:
        self.words.append("rest")


MADE: list[Leased] = []


def pacing() -> Leased:
    MADE.append(Leased())
    return MADE[-1]


def staged(_: str) -> None:
    """A task of the staged path, without records."""
    work = Work(
        dsn="postgresql://nobody/none", table="t", batch=Batch("q", 0), run="r", bounds=Bounds(1), cost=Cost(1),
        dearest=None, max_document_bytes=1, down_max_ms=1, faults=NO_FAULTS,
    )  # fmt: skip
    assert len(list(stager(work, pacing)([]))) == 1


def sending(state: str) -> None:
    """A task that sends, with nothing to send."""
    Ledger(Database(state), "w").prepare()
    settings = job(mode="lanes", sink="call:tests.unit.spark.test_couriers:deliver", state_dsn=state)
    assert _report(SendWork(settings, Batch("q", 0), "r", pacing, NO_FAULTS, driver=1), [], 0, 0).ends == {}


@pytest.mark.parametrize("task", [staged, sending])
def test_each_worker_makes_its_own_at_its_first_task_and_keeps_it_for_the_next(
    task: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_task = SimpleNamespace(partitionId=lambda: 0, attemptNumber=lambda: 0, taskAttemptId=lambda: 7)
    monkeypatch.setattr(pyspark, "TaskContext", SimpleNamespace(get=lambda: of_task))
    known: dict[Any, Any] = {}
    monkeypatch.setattr(frames, "_WORKERS", known)
    monkeypatch.setattr(couriers, "_WORKERS", known)
    monkeypatch.setattr("headrace_spark.jobs.logs.to_stderr", lambda: None)
    MADE.clear()
    for pid in (101, 101, 102):  # the second is a fork of the first: it has the first one's memory
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        task(f"sqlite://{tmp_path}/state.db")
    assert [one.words for one in MADE] == [["expect", "rest"] * 2, ["expect", "rest"]]
