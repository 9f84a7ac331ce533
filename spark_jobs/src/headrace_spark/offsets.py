"""How many offsets a micro-batch may take (spark-writer.md 2, `maxOffsetsPerTrigger`)."""

from __future__ import annotations

import math
from typing import Final

MOST: Final = 1_000_000
_PATIENCE: Final = 10


def per_trigger(capacity: int, share: float, trigger_ms: int, mean_cost: float, partitions: int) -> int:
    """`floor(capacity x share x trigger seconds x 0.8 / mean cost per record)`, from `partitions` to a million."""
    wanted = math.floor(capacity * share * (trigger_ms / 1000) * 0.8 / mean_cost)
    return max(partitions, min(MOST, wanted))


class Drift:
    """Says when ten micro-batches in a row would give a value more than twice off the one in force."""

    def __init__(self, in_force: int) -> None:
        self.in_force = in_force
        self._row = 0

    def off(self, value: int) -> bool:
        """Take the value that the latest micro-batch gives; True if it is time to start the query anew."""
        apart = value > 2 * self.in_force or 2 * value < self.in_force
        self._row = self._row + 1 if apart else 0
        return self._row >= _PATIENCE
