"""Rates of the two stages, each alone in a real worker: raw to routed, and routed to batches (streams.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.streams import traffic
from bench.streams.process import Streams
from bench.streams.rounds import Ends, Round, worker_rounds
from headrace_core.stage import Record

ENTITIES = 1_000


@contextmanager
def worker(kafka: str, prefix: str, folder: Path, stages: str, **settings: str) -> Iterator[Streams]:
    """A worker that is ready, ended at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Streams(kafka, prefix, folder, stages=stages, settings={"ROOTS": json.dumps(traffic.roots()), **settings})
    try:
        made.begin()
        yield made
    finally:
        made.end()


def registration(kafka: str, folder: Path, count: int, rounds: int) -> list[Round]:
    """Data of registered entities passing from `raw` to `routed`."""
    prefix, ends, numbers = "registration.", Ends(kafka), iter(range(0, 10**12, count))
    with worker(kafka, prefix, folder, "registration") as ours:
        known = traffic.prefill(kafka, prefix + "raw", traffic.registrations(ENTITIES))
        ours.until(lambda: ours.applied("registration") >= known, "registrations", 60)

        def fill() -> int:
            return traffic.prefill(kafka, prefix + "raw", traffic.telemetry(next(numbers), count, ENTITIES))

        found = worker_rounds(ours, ends, prefix, "registration", "raw", fill, rounds)
        passed = ours.metric('headrace_stage{name="passed"')
        assert passed == count * (rounds + 1), f"{passed} passed"
    ends.close()
    return found


def batching(kafka: str, folder: Path, count: int, rounds: int) -> list[Round]:
    """The same data from `routed` to `batches`; four members a batch."""
    prefix, ends, fill = "batching.", Ends(kafka), routed_filler(kafka, "batching.routed", count)
    with worker(kafka, prefix, folder, "batching") as ours:
        found = worker_rounds(ours, ends, prefix, "batching", "routed", fill, rounds)
        accepted = ours.metric('headrace_stage{name="accepted"')
        assert accepted == count * (rounds + 1), f"{accepted} accepted"
    ends.close()
    return found


def routed_filler(kafka: str, topic: str, count: int) -> Callable[[], int]:
    """Writes the next `count` routed data records each time it is called."""
    source, numbers = traffic.Registered(ENTITIES), iter(range(0, 10**12, count))

    def fill() -> int:
        records: Iterator[Record] = source.routed(traffic.telemetry(next(numbers), count, ENTITIES))
        return traffic.prefill(kafka, topic, records)

    return fill
