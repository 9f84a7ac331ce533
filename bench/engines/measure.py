"""How the engines are measured: CPU time of one thread, the best of some runs, beside a floor of the same run.

The machines that this runs on are shared, so wall time says little and even CPU time moves by a third; of several runs
the best one is the least disturbed. The floor is what any Python program pays for the same messages: a dict-based loop
that decodes and encodes their JSON. A figure divided by the floor of its own run can be compared between machines.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from bench.engines.sampler import Sampler
from headrace_core.stage import Emission, Record, Stage
from headrace_core.state import MemoryState, Overlay

CHUNK_RECORDS = 5000
"""Records of a chunk, the stream processor's default (streams.md 1)."""
T = TypeVar("T")


@dataclass
class Figure:
    """One figure. `value` in `unit`; `target` in the same unit, or None if there is none; `least`: more is better."""

    name: str
    value: float
    unit: str
    target: float | None = None
    least: bool = True
    floor: float | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    profile: list[tuple[str, float]] = field(default_factory=list)

    @property
    def met(self) -> bool | None:
        """None if there is no target."""
        if self.target is None:
            return None
        return self.value >= self.target if self.least else self.value <= self.target

    def document(self) -> dict[str, Any]:
        """As a JSON object."""
        ratio = None if not self.floor else round(self.value / self.floor, 3)
        return asdict(self) | {"value": round(self.value, 3), "met": self.met, "of_floor": ratio}


def cpu_seconds(run: Callable[[T], object], prepare: Callable[[], T], *, runs: int) -> float:
    """CPU seconds of the best of `runs` runs, each over what `prepare` made for it, which is not counted."""
    best = float("inf")
    for _ in range(runs):
        made = prepare()
        gc.collect()
        gc.freeze()  # the messages themselves are there before and after: no part of the work
        started = time.process_time()
        run(made)
        best = min(best, time.process_time() - started)
        gc.unfreeze()
    return best


def rated(
    name: str,
    count: int,
    run: Callable[[T], object],
    prepare: Callable[[], T],
    *,
    target: float | None = None,
    runs: int = 5,
    unit: str = "messages/s",
) -> Figure:
    """A rate of `count` things a run; with a profile if it misses the target."""
    figure = Figure(name, count / cpu_seconds(run, prepare, runs=runs), unit, target)
    if figure.met is False:
        figure.profile = profile(run, prepare)
    return figure


def profile(run: Callable[[T], object], prepare: Callable[[], T], *, samples: int = 1000) -> list[tuple[str, float]]:
    """Shares of CPU time by function, from as many runs as give enough samples."""
    sampler = Sampler()
    for _ in range(20):
        made = prepare()
        with sampler:
            run(made)
        if sampler.functions.total() >= samples:
            break
    return [(name, round(share, 3)) for name, share in sampler.shares()]


def floor_rate(records: Sequence[Record], *, runs: int = 5) -> float:
    """Messages/s of a plain loop: JSON into a dict and back, by the standard library, one dict entry a message."""

    def run(table: dict[int, bytes]) -> None:
        for record in records:
            table[record.offset] = json.dumps(json.loads(record.value or b"{}")).encode()

    return len(records) / cpu_seconds(run, dict[int, bytes], runs=runs)


def chunks(records: Sequence[T], size: int = CHUNK_RECORDS) -> Iterable[Sequence[T]]:
    """The records in chunks."""
    return (records[at : at + size] for at in range(0, len(records), size))


def run_stage(stage: Stage, base: MemoryState, records: Sequence[Record]) -> int:
    """Apply records as the runner does, chunk by chunk (streams.md 2), without its log. Returns the emissions."""
    emitted = 0
    for chunk in chunks(records):
        overlay, emissions = Overlay(base), list[Emission]()
        for record in chunk:
            stage.apply(overlay, record, emissions.append)
        base.commit(overlay.mutations)
        emitted += len(emissions)
    return emitted
