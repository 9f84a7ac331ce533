"""How one start of the query ends: told to stop, told to start again, or by an error; and what exit code that has."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from headrace_core.errors import ConfigError
from headrace_spark.counts import Counts
from headrace_spark.database import StateDown
from headrace_spark.exits import CheckpointRefused, CorruptInput, Stopping
from headrace_spark.jobs.process import exit_code
from headrace_spark.jobs.writer import _ended, _Query
from headrace_spark.losses import DataLost
from headrace_spark.metrics import Progress
from headrace_spark.outbox import OutboxDown
from headrace_spark.sinks.port import Batch, SinkDown
from tests.unit.spark.fakes import job


class Query:
    """A streaming query as far as it is asked here. It ends by itself with an error, or when it is stopped."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.isActive = error is None
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1
        self.isActive = False

    def exception(self) -> Exception | None:
        return self.error


class Way:
    """Counts how often it was stopped."""

    stops = 0

    def stop(self) -> None:
        self.stops += 1


class Found:
    """A way that finds out early or late that the ledger has a micro-batch, or writes it."""

    def __init__(self, early: bool, late: bool) -> None:
        self.early, self.late, self.written = early, late, 0

    def done(self, _: Batch) -> bool:
        return self.early

    def write(self, _frame: object, _batch: Batch) -> Counts | None:
        self.written += 1
        return None if self.late else Counts(microbatches=1)


class Parts:
    """What the end of a query looks at, of the job and of the work."""

    def __init__(self) -> None:
        self.settings = job(stop_timeout_ms=50)
        self.stop, self.again = threading.Event(), threading.Event()
        self.turn = threading.Lock()
        self.failure: Exception | None = None
        self.way = Way()


def ended(parts: Parts, query: Query) -> bool:
    given: Any = parts
    return _ended(given, query, given)


def test_a_micro_batch_refused_after_the_word_to_stop_is_no_failure() -> None:
    parts, query = Parts(), Query(RuntimeError("told to stop before this micro-batch"))
    parts.stop.set()
    assert ended(parts, query) is False


def test_nor_is_one_refused_after_the_word_to_start_again() -> None:
    parts, query = Parts(), Query(RuntimeError("told to stop before this micro-batch"))
    parts.again.set()
    assert ended(parts, query) is True


def test_a_stop_waits_for_the_micro_batch_under_way_but_not_for_ever() -> None:
    parts, query = Parts(), Query()
    parts.stop.set()
    with parts.turn:
        assert ended(parts, query) is False
        assert parts.turn.locked(), "the turn of the micro-batch stays its own"
    assert query.stops == parts.way.stops == 1, "what waits for capacity waits no longer"


def test_a_micro_batch_that_ends_in_time_is_not_torn_from_its_capacity() -> None:
    parts, query = Parts(), Query()
    parts.stop.set()
    assert ended(parts, query) is False
    assert (query.stops, parts.way.stops) == (1, 0)


@pytest.mark.parametrize("word", ["stop", "again"])
def test_a_micro_batch_that_comes_while_the_query_is_stopped_is_refused_at_once(word: str) -> None:
    """The stop has the turn and waits for the end of Spark's thread, which brings this micro-batch."""
    given: Any = Parts()
    work = _Query(given, 1, 1)
    work.named("query")
    getattr(given if word == "stop" else work, word).set()
    with given.turn, pytest.raises(Stopping):
        work.write(None, 1)
    with pytest.raises(Stopping):
        work.write(None, 1)
    assert not given.turn.locked()


@pytest.mark.parametrize(("early", "late", "hits", "written"), [(1, 0, 1, 0), (0, 1, 1, 1), (0, 0, 0, 1)])
def test_a_micro_batch_that_the_ledger_has_is_a_hit_whenever_that_is_known(
    early: int, late: int, hits: int, written: int
) -> None:
    parts: Any = Parts()
    parts.way, parts.progress, parts.limit = Found(bool(early), bool(late)), Progress(1_000), lambda _: 1
    work = _Query(parts, 1, 1)
    work.named("query")
    work.write(None, 7)
    assert (parts.progress.ledger_hits, parts.progress.batch_id, parts.way.written) == (hits, 7, written)


def test_an_error_without_any_word_is_a_failure_and_the_jobs_own_comes_first() -> None:
    parts, query = Parts(), Query(RuntimeError("spark says"))
    with pytest.raises(RuntimeError, match="spark says"):
        ended(parts, query)
    parts.failure = CorruptInput("too much")
    with pytest.raises(CorruptInput):
        ended(parts, query)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("cost", "free"), 2), (CheckpointRefused("another"), 3), (CorruptInput("too much"), 5),
        (SinkDown("away"), 6), (StateDown("away"), 1), (OutboxDown("away"), 1), (RuntimeError("bug"), 1),
        (RuntimeError("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost"), 4),
        (RuntimeError("Traceback: headrace_spark.sinks.port.SinkDown: connection refused"), 6), (DataLost("gap"), 4),
    ],
)  # fmt: skip
def test_each_kind_of_error_has_itsexit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code
