"""How long a pause lasts (capacity.md 8).

The n-th pause in a row, n from 0, lasts `max(retry_after, min(cap, max(pause, retry_after) * factor^n))`, times a
random `1 +- jitter`, never below `retry_after`. n returns to 0 once `pause_reset_ms` passed since the last resume. A
pause inside a pause is ignored unless its `retry_after` ends later; then the running one is extended. User calls come
before a resume of the same instant, so a call at the very end is still inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from headrace_core.capacity.config import BatcherConfig

Outcome = Literal["pause", "extended", "ignored"]


class PauseRule:
    """`rng` gives numbers in [0, 1); without it there is no jitter."""

    def __init__(self, config: BatcherConfig, rng: Callable[[], float] | None = None) -> None:
        self._config = config
        self._rng = rng
        self._row = 0
        self._resumed_ms: int | None = None
        self.until_ms: int | None = None

    def ask(self, now_ms: int, retry_after_ms: int | None = None) -> Outcome:
        """A pause is asked for at `now_ms`; afterwards `until_ms` is the end of the running pause."""
        retry_after = max(0, retry_after_ms or 0)
        if self.until_ms is not None:
            return self.extend(now_ms + retry_after)
        if self._resumed_ms is not None and now_ms - self._resumed_ms >= self._config.pause_reset_ms:
            self._row = 0
        self.until_ms = now_ms + self._length(retry_after)
        self._row += 1
        return "pause"

    def extend(self, until_ms: int) -> Outcome:
        """Let the running pause (or one that starts here) end no earlier than `until_ms`."""
        before, self.until_ms = self.until_ms, max(self.until_ms or until_ms, until_ms)
        if before is None:
            return "pause"
        return "extended" if until_ms > before else "ignored"

    def resume(self, now_ms: int) -> bool:
        """End the pause if it is over at `now_ms`."""
        if self.until_ms is None or now_ms < self.until_ms:
            return False
        self._resumed_ms, self.until_ms = self.until_ms, None
        return True

    def _length(self, retry_after: int) -> int:
        cap = self._config.pause_cap_ms
        length: float = max(self._config.pause_ms, retry_after)
        for _ in range(self._row):
            if length >= cap or self._config.pause_factor == 1:
                break
            length *= self._config.pause_factor
        length = max(retry_after, min(cap, length))
        if self._rng is not None:
            length *= 1 + self._config.pause_jitter * (2 * self._rng() - 1)
        return max(retry_after, round(length))
