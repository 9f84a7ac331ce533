"""Where the CPU time goes: a sampling profiler on the process's CPU clock, without the bias of a tracing one."""

from __future__ import annotations

import signal
from collections import Counter
from types import FrameType
from typing import Self

INTERVAL_S = 0.001


class Sampler:
    """Counts the function (and line) that runs at each millisecond of CPU time, while it is entered."""

    def __init__(self) -> None:
        self.functions: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()

    def __enter__(self) -> Self:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _take(self, _signal: int, frame: FrameType | None) -> None:
        if frame is not None:
            name = f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}"
            self.functions[name] += 1
            self.lines[f"{name}:{frame.f_lineno}"] += 1

    def shares(self, most: int = 12) -> list[tuple[str, float]]:
        """Functions with the largest shares of the samples (time in a function itself, C code it calls included)."""
        total = max(1, self.functions.total())
        return [
            (name.removeprefix("headrace_core."), count / total) for name, count in self.functions.most_common(most)
        ]
