"""Whether the cost of a message stays flat from 1,000 to 1,000,000 entities, open batches and pending messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from bench.engines import batching, registration
from bench.engines.measure import Figure, cpu_seconds
from headrace_core.batching.config import BatchingConfig
from headrace_core.state import MemoryState

SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 10_000)
FLAT = 1.5
PROBE, PARTS = 1_000, 5
LATE = BatchingConfig(timeout=10**9, window=0)


class Curve(NamedTuple):
    """`grow(size, probe, base, started)` makes `base` that large and gives messages; `run(base, messages)` applies."""

    name: str
    grow: Callable[[int, int, MemoryState, int], Any]
    run: Callable[[MemoryState, Any], object]


def _pass(base: MemoryState, messages: Any) -> object:
    return registration.run_engine(registration.CONFIG, base, messages)


def _cache(base: MemoryState, messages: Any) -> object:
    return registration.run_engine(registration.WIDE, base, messages)


def _batch(base: MemoryState, messages: Any) -> object:
    return batching.run_batcher(LATE, base, messages)


CURVES = (
    Curve("registered entities", registration.entities, _pass),
    Curve("pending entities", registration.cached, _cache),
    Curve("open batches", batching.open_batches, _batch),
    Curve("open batches of one source", batching.one_source, _batch),
)


def measure(curve: Curve, sizes: tuple[int, ...]) -> dict[int, float]:
    """CPU microseconds a message by size, all on one state that grows."""
    base, before, found = MemoryState(), 0, dict[int, float]()
    for size in sizes:
        messages = curve.grow(size, PROBE, base, before)
        before = size
        parts = [messages[at::PARTS] for at in range(PARTS)]  # a message is new only once, so no part comes again
        curve.run(base, parts.pop())  # the first one sorts in what has grown
        seconds = cpu_seconds(partial(curve.run, base), parts.pop, runs=PARTS - 1)
        found[size] = seconds / (PROBE // PARTS) * 1e6
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
