"""Rates of the two stages, each alone in a real worker: raw to routed, and routed to batches (streams.md)."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.streams import traffic
from bench.streams.process import BenchFailed, Streams
from bench.streams.rounds import Contestant, Ends
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


@contextmanager
def registration(kafka: str, folder: Path, count: int) -> Iterator[Contestant]:
    """Data of registered entities passing from `raw` to `routed`."""
    prefix, ends, numbers = "registration.", Ends(kafka), iter(range(0, 10**12, count))
    with worker(kafka, prefix, folder, "registration") as ours:
        known = traffic.prefill(kafka, prefix + "raw", traffic.registrations(ENTITIES))
        ours.until(lambda: ours.applied("registration") >= known, "registrations", 120)

        def fill() -> int:
            return traffic.prefill(kafka, prefix + "raw", traffic.telemetry(next(numbers), count, ENTITIES))

        one = _contestant("registration", ours, fill, ends)
        yield one
        _check(ours, "passed", count * (len(one.rounds) + 1))


@contextmanager
def batching(kafka: str, folder: Path, count: int) -> Iterator[Contestant]:
    """The same data from `routed` to `batches`; four members a batch."""
    fill = routed_filler(kafka, "batching.routed", count)
    with worker(kafka, "batching.", folder, "batching") as ours:
        one = _contestant("batching", ours, fill, Ends(kafka))
        yield one
        _check(ours, "accepted", count * (len(one.rounds) + 1))


def _contestant(stage: str, ours: Streams, fill: Callable[[], int], ends: Ends) -> Contestant:
    ended = functools.partial(ends.last_written, f"{stage}.{stage}.changelog")
    return Contestant(f"headrace {stage}", ours, fill, lambda: ours.applied(stage), ended)


def _check(ours: Streams, counter: str, expected: int) -> None:
    """The work has been done: what is measured is not a worker that drops messages."""
    found = ours.metric(f'headrace_stage{{name="{counter}"')
    if found != expected:
        raise BenchFailed(f"{counter}: {found}, expected {expected}")


def routed_filler(kafka: str, topic: str, count: int) -> Callable[[], int]:
    """Writes the next `count` routed data records each time it is called."""
    source, numbers = traffic.Registered(ENTITIES), iter(range(0, 10**12, count))

    def fill() -> int:
        records: Iterator[Record] = source.routed(traffic.telemetry(next(numbers), count, ENTITIES))
        return traffic.prefill(kafka, topic, records)

    return fill
