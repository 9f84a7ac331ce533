"""Whether the cost of a message stays flat from 1,000 to 1,000,000 entities, open batches and pending messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.engines import batching, registration
from bench.engines.measure import Figure, cpu_seconds
from headrace_core.batching.config import BatchingConfig
from headrace_core.state import MemoryState

SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 10_000)
FLAT = 1.5
PROBE = 5_000
LATE = BatchingConfig(timeout=10**9, window=0)


class Curve(NamedTuple):
    """`grow(size, probe, base, started)` makes `base` that large and gives messages; `run(base, messages)` applies."""

    name: str
    grow: Callable[[int, int, MemoryState, int], Any]
    run: Callable[[MemoryState, Any], object]


CURVES = (
    Curve("registered entities", registration.entities, lambda b, m: registration.run_engine(registration.CONFIG, b, m)),
    Curve("cached messages", registration.cached, lambda b, m: registration.run_engine(registration.WIDE, b, m)),
    Curve("open batches", batching.open_batches, lambda b, m: batching.run_batcher(LATE, b, m)),
    Curve("open batches of one source", batching.one_source, lambda b, m: batching.run_batcher(LATE, b, m)),
)  # fmt: skip


def measure(curve: Curve, sizes: tuple[int, ...]) -> dict[int, float]:
    """CPU microseconds a message by size, all on one state that grows."""
    base, before, found = MemoryState(), 0, dict[int, float]()
    for size in sizes:
        parts = [curve.grow(size, PROBE, base, before if part == 0 else size) for part in range(1)]
        before = size
        messages = parts[0]
        thirds = [messages[at::3] for at in range(3)]  # each message is new only once, so three runs of a third
        left = iter(thirds)
        curve.run(base, next(left))
        seconds = cpu_seconds(lambda part: curve.run(base, part), lambda: next(left), runs=2)
        found[size] = seconds / (len(messages) // 3) * 1e6
    return found


def figures(*, quick: bool) -> tuple[list[Figure], dict[str, dict[int, float]]]:
    """The largest cost to that at the smallest size, and the curves."""
    sizes, found, curves = QUICK_SIZES if quick else SIZES, list[Figure](), dict[str, dict[int, float]]()
    for curve in CURVES:
        started = time.monotonic()
        costs = curves[curve.name] = measure(curve, sizes)
        figure = Figure(f"flat over {curve.name}", max(costs.values()) / costs[sizes[0]], "ratio", FLAT, least=False)
        figure.notes["us CPU/message"] = {str(size): round(cost, 2) for size, cost in costs.items()}
        figure.notes["seconds"] = round(time.monotonic() - started, 1)
        found.append(figure)
    return found, curves
