"""Packing: 200,000 measurements into batches of at most 500 (packing.md 5)."""

from __future__ import annotations

import numpy as np

from bench.engines.measure import Figure, rated
from headrace_core.packing import pack

ROWS = 200_000
MAXIMUM = 500


def rows(subjects: int, times: int) -> tuple[list[str], np.ndarray]:
    """One measurement for each subject and time, in order of time."""
    ids = [f"device{subject:06d}$temperature" for subject in range(subjects)] * times
    return ids, np.repeat(np.arange(times), subjects)


def figures(*, quick: bool) -> list[Figure]:
    """2,000 subjects at 100 times, and 200,000 subjects at one time."""
    many, wide = rows(2000, 100), rows(200_000, 1)
    runs = 3 if quick else 7
    first = rated("packing", ROWS, lambda made: pack(*made, MAXIMUM), lambda: many, target=300_000, runs=runs,
                  unit="measurements/s")  # fmt: skip
    second = rated("packing, 200,000 subjects at one time", ROWS, lambda made: pack(*made, MAXIMUM), lambda: wide,
                   target=150_000, runs=runs, unit="measurements/s")  # fmt: skip
    second.notes["what"] = "target: twice the time of the demanded 300,000/s (packing.md 5)"
    ratio = Figure("packing, time of a measurement, 200,000 subjects at one time to 2,000 x 100",
                   first.value / second.value, "ratio", 2.0, least=False)  # fmt: skip
    return [first, second, ratio]
