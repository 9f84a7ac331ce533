"""Plain Faust in the same rounds, with few messages: it is some 20 times slower.

A round ends when its last output is there, which is before Faust has committed it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.streams import plain_app, traffic
from bench.streams.process import Measured
from bench.streams.rounds import Contestant, Ends
from bench.streams.stages import ENTITIES

APP = Path(plain_app.__file__)


@contextmanager
def count(kafka: str, place: Path, messages: int) -> Iterator[Contestant]:
    """As `stages.registration`, with an agent and a table."""
    source, target = "plain.in", "plain.out"
    numbers = iter(range(0, 10**12, messages))
    traffic.create(kafka, [source, target])
    place.mkdir(parents=True, exist_ok=True)
    ends = Ends(kafka)

    def fill() -> int:
        return traffic.prefill(kafka, source, traffic.telemetry(next(numbers), messages, ENTITIES))

    process = Measured([sys.executable, str(APP), kafka, str(place / "data"), source, target], place / "plain.log")
    try:
        process.start()
        first = fill()
        process.until(lambda: ends.end(target) >= first, "the first round", 120, every_s=0.2)
        yield Contestant("plain Faust count", process, fill, lambda: ends.end(target))
    finally:
        process.end()
