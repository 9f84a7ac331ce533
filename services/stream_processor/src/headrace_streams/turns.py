"""Turns on the event loop: whoever computes for long gives the others theirs (`streams.md` 2, last paragraph).

A chunk needs about ten turns of the loop, for its acknowledgements, the consumer's thread and Faust's tasks in
between. If each of them waits for a slice of another partition's large chunk, counted in records, the small chunk takes
ten slices; with a slice of 0.2 s of computing and a tenth of a core that was 20 s, and the loop's timers were as late.
So a slice is a time, not a count.
"""

from __future__ import annotations

import asyncio
import time

TURN_S = 0.01


class Turns:
    """One computation's turns. Call `over` often, and await `give` when it says so."""

    def __init__(self) -> None:
        self._until = time.monotonic() + TURN_S

    def over(self) -> bool:
        """Whether this turn has lasted long enough."""
        return time.monotonic() > self._until

    async def give(self) -> None:
        """Let everybody else run once."""
        await asyncio.sleep(0)
        self._until = time.monotonic() + TURN_S
