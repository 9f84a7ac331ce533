"""Clock quality (timeline.md 12): pure functions of samples. Which partition acts on them: `system.clock`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace_core.timeline.settings import Settings

Number = int | float


class Sample(NamedTuple):
    """`offset_ms` positive: the service is ahead of the caller."""

    offset_ms: float
    rtt_ms: int
    level: str


def sample(t0: int, t1: int, t2: int, t3: int, settings: Settings) -> Sample:
    """Four times: sent, received, answered, answer received (section 12.1)."""
    offset = ((t1 - t0) + (t2 - t3)) / 2
    if abs(offset) >= settings.drift_error_ms:
        level = "error"
    elif abs(offset) >= settings.drift_warn_ms:
        level = "warn"
    else:
        level = "ok"
    return Sample(offset, (t3 - t0) - (t2 - t1), level)


def best(samples: Sequence[Sample]) -> Sample:
    """Of the last 8 samples the one with the least round trip."""
    return min(samples[-8:], key=lambda each: each.rtt_ms)


def median(values: Sequence[Number]) -> Number:
    """Of an even number the mean of the two middle values (section 12.3); exact for whole numbers."""
    ordered, half = sorted(values), len(values) // 2
    if len(values) % 2:
        return ordered[half]
    total = ordered[half - 1] + ordered[half]
    return total // 2 if isinstance(total, int) and total % 2 == 0 else total / 2
