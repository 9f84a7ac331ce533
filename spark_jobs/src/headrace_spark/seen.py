"""What is seen of every operation on its way to the sink (spark-writer.md 9, groups "sink" and "capacity").

Theory: all that goes out goes through a `Pacing`, so `Watched` around it sees each wait, each answer and how long it
took, in the driver and in the tasks alike. A task's numbers travel in its report; the driver adds those of accepted
reports only, so a task that was repeated does not count twice. These numbers are of this process and begin at 0 with
it; what must add up over restarts is in the ledger.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal, TypeVar

import msgspec
import psycopg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace_core.capacity.events import Event
from headrace_spark.lane_numbers import LaneNumbers
from headrace_spark.observed import PREFIX
from headrace_spark.pacing import SECOND_NS, Pacing, PausingPacing
from headrace_spark.sinks.port import SinkDown
from headrace_spark.transforms.records import Report

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SHOWN_NS: Final = 15 * SECOND_NS
"""So that a usual scrape sees it."""
CLASSES: Final = ("done", "retry", "reject", "down", "error")
T = TypeVar("T")


class Seen(msgspec.Struct, array_like=True):
    """Sums: operations by the bound that their seconds are below, and by answer; seconds of calls and of waiting for
    capacity; units asked for and units that the sink says it took; pauses and stalls of the batcher."""

    latency: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    answers: dict[str, int] = {}
    seconds: float = 0.0
    waited: float = 0.0
    estimated: int = 0
    charged: int = 0
    pauses: int = 0
    stalls: int = 0

    def add(self, other: Seen) -> None:
        """Add another one's sums."""
        self.latency = [one + two for one, two in zip(self.latency, other.latency, strict=True)]
        self.answers = dict(Counter(self.answers) + Counter(other.answers))
        for name in ("seconds", "waited", "estimated", "charged", "pauses", "stalls"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Watched:
    """Implements `Pacing` around another one."""

    def __init__(self, inner: Pacing) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._seen = Seen()
        self.staged_rows = 0
        """Rows that wait in the staging table for their merge."""
        self.skew = 0.0
        """The largest part of a micro-batch's rows that one key has."""
        self.beside: LaneNumbers | None = None
        """What is counted besides, of lanes."""
        self._tasks_rate, self._tasks_until_ns = 0.0, 0
        listen = getattr(inner, "listen", None)
        if listen is not None:
            listen(self.heard)

    def run(self, cost: int, work: Callable[[int], T]) -> T:
        """See `Pacing`."""
        return self._watch(cost, work, lambda attempt: self._inner.run(cost, attempt))

    def used(self) -> int:
        """See `Pacing`: of all processes of the job, as far as they are known here. Tasks and driver send in turns, so
        it is the higher of the two and not the sum, which nobody ever sent in one second."""
        told = getattr(self._inner, "everywhere", False) or time.monotonic_ns() >= self._tasks_until_ns
        return max(self._inner.used(), 0 if told else round(self._tasks_rate))

    def tasks(self, units: int, took_ns: int) -> None:
        """The tasks of a stage sent so many units. Where the inner pacing does not see other processes, the mean of the
        stage stands for what they send in a second, for as long as it took, and for `SHOWN_NS` at least."""
        self._tasks_rate = units / (max(SECOND_NS, took_ns) / SECOND_NS)
        self._tasks_until_ns = time.monotonic_ns() + max(SHOWN_NS, took_ns)

    def stop(self) -> None:
        """See `Pacing`."""
        self._inner.stop()

    def expect(self) -> None:
        """Work comes soon (`Pacer.expect`); means nothing where nothing is leased."""
        self._tell("expect")

    def rest(self) -> None:
        """All work is done for now (`Pacer.rest`)."""
        self._tell("rest")

    def _tell(self, what: str) -> None:
        told = getattr(self._inner, what, None)
        if told is not None:
            told()

    def take(self) -> Seen:
        """The sums since the last call, for a task's report."""
        with self._lock:
            taken, self._seen = self._seen, Seen()
            return taken

    def add(self, other: Seen) -> None:
        """What an accepted task saw."""
        with self._lock:
            self._seen.add(other)

    def heard(self, event: Event) -> None:
        """An event of the batcher."""
        with self._lock:
            self._seen.pauses += event.name == "pause"
            self._seen.stalls += event.name == "stalled"

    def _watch(self, cost: int, work: Callable[[int], T], through: Callable[[Callable[[int], T]], T]) -> T:
        asked_ns, began_ns, answer, charged = time.monotonic_ns(), 0, "error", 0

        def attempt(at_ns: int) -> T:
            nonlocal began_ns
            began_ns = time.monotonic_ns()
            return work(at_ns)

        try:
            found = through(attempt)
            answer, charged = _answer(found), _charge(found, cost)
            return found
        except BaseException as error:
            answer, charged = _failure(error), cost
            raise
        finally:
            if began_ns:  # else it never went out
                self._count(asked_ns, began_ns, answer, cost, charged)

    def _count(self, asked_ns: int, began_ns: int, answer: str, cost: int, charged: int) -> None:
        took = (time.monotonic_ns() - began_ns) / SECOND_NS
        with self._lock:
            seen = self._seen
            seen.latency[bisect_left(BOUNDS_S, took)] += 1
            seen.answers = {**seen.answers, answer: seen.answers.get(answer, 0) + 1}
            seen.seconds += took
            seen.waited += (began_ns - asked_ns) / SECOND_NS
            seen.estimated += cost
            seen.charged += charged

    def collect(self) -> Iterator[Metric]:
        """Metric families."""
        with self._lock:
            seen = msgspec.structs.replace(self._seen, latency=list(self._seen.latency))
        latency = HistogramMetricFamily(PREFIX + "sink_latency_seconds", "how long the sink took for an operation")
        latency.add_metric([], _cumulated(seen.latency), seen.seconds)
        yield latency
        answers = CounterMetricFamily(PREFIX + "sink_answers", "answers of the sink by class", labels=["answer"])
        for name in CLASSES:
            answers.add_metric([name], seen.answers.get(name, 0))
        yield answers
        for name, text, value in (
            ("capacity_waited_seconds", "seconds that operations waited for capacity", seen.waited),
            ("capacity_estimated", "units that operations were estimated at when they went out", seen.estimated),
            ("capacity_charged", "units that they were charged with", seen.charged),
            ("capacity_pauses", "pauses that the sink asked for", seen.pauses),
            ("capacity_stalls", "times that nothing went out for too long", seen.stalls),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value=value)
        yield GaugeMetricFamily(PREFIX + "staging_rows", "rows staged and not yet merged", value=self.staged_rows)
        text = "largest part of the latest micro-batch's rows that one key has"
        yield GaugeMetricFamily(PREFIX + "key_skew", text, value=self.skew)
        if self.beside is not None:
            yield from self.beside.collect()


class WatchedAnswers(Watched):
    """Implements `PausingPacing` around another one."""

    def __init__(self, inner: PausingPacing) -> None:
        super().__init__(inner)
        self._pausing = inner

    def settled(self, cost: int, work: Callable[[int], T], charge: Callable[[T], int | None]) -> T:
        """See `PausingPacing`."""

        def through(attempt: Callable[[int], T]) -> T:
            return self._pausing.settled(cost, attempt, charge)

        return self._watch(cost, work, through)

    def pause(self, retry_after_ms: int | None, scope: Literal["instance", "resource"]) -> None:
        """See `PausingPacing`."""
        self._pausing.pause(retry_after_ms, scope)

    def answered(self, *, well: bool) -> None:
        """See `PausingPacing`."""
        self._pausing.answered(well=well)


def skew(reports: Iterable[Report]) -> float:
    """The largest part of the rows that one key (source) has; 0 without rows."""
    by_key: Counter[str] = Counter()
    for one in reports:
        if one.taken is not None:
            by_key[one.taken.source] += one.staged or len(one.taken.measurements)
    total = by_key.total()
    return max(by_key.values()) / total if total else 0.0


def _answer(found: Any) -> str:
    return str(getattr(found, "outcome", "done"))


def _charge(found: Any, cost: int) -> int:
    charge = getattr(found, "charge", None)
    return cost if charge is None else int(charge)


def _failure(error: BaseException) -> str:
    """The class of what a call raised."""
    if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
        return "reject"
    return (
        "down" if isinstance(error, SinkDown | psycopg.OperationalError | ConnectionError | TimeoutError) else "error"
    )


def _cumulated(counts: list[int]) -> list[tuple[str, float]]:
    found, total = list[tuple[str, float]](), 0
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), counts, strict=True):
        total += count
        found.append((bound, total))
    return found
