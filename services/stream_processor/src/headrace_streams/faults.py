"""Fault points for tests: `HEADRACE_STREAMS_FAULT=step:count` ends the process after that step of that chunk.

Steps are those of `streams.md` 2 (2 engine, 3 emissions, 4 changelog, 5 database, 6 acknowledged),
and 7: everything of a transaction is written, and it is still open.
"""

from __future__ import annotations

import os
from collections import Counter

FAULT_EXIT = 86
INSIDE_TRANSACTION = 7


class Faults:
    """Counts how often each step was passed. Without a setting `passed` does nothing."""

    def __init__(self, setting: str = "") -> None:
        self._step, self._count = (int(part) for part in setting.split(":")) if setting else (0, 0)
        self._passed: Counter[int] = Counter()

    def passed(self, step: int) -> None:
        """Tell that `step` is done; ends the process as kill -9 would, if this is the one."""
        if step != self._step:
            return
        self._passed[step] += 1
        if self._passed[step] == self._count:
            os._exit(FAULT_EXIT)
