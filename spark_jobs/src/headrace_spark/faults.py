"""Fault points for tests: `HEADRACE_SPARK_FAULT=point[,point...]` ends a process as kill -9 would, at each point named;
`stop:point` stops it there (SIGSTOP) until somebody continues it.

`task:<batch>:<part>:<attempt>`  a Python worker, when the task attempt has written its first chunk and has more, or has
                                 the end of its first request recorded
`staged:<batch>`                 the driver, when all tasks have ended and before it merges
`merging:<batch>`                the driver, inside its transaction, when everything but the commit is done
`sent:<batch>`                   the driver, when a sink to which tasks send, or Delta Lake, has all; no ledger row
`written:<batch>`                the driver, when the micro-batch is committed in the store, before Spark's commit log
`begun:<batch>`                  the driver, before any task of the micro-batch
"""

from __future__ import annotations

import os
import signal
from typing import Final

import msgspec

VARIABLE = "HEADRACE_SPARK_FAULT"


class Faults(msgspec.Struct, frozen=True):
    """The points of this run; goes to the tasks with their work. Without a setting `passed` does nothing."""

    points: frozenset[str] = frozenset()

    def passed(self, name: str, *numbers: int) -> None:
        """Tell that this point is reached."""
        if not self.points:
            return
        point = ":".join([name, *map(str, numbers)])
        if point in self.points:
            os.kill(os.getpid(), signal.SIGKILL)
        if f"stop:{point}" in self.points:
            os.kill(os.getpid(), signal.SIGSTOP)


NO_FAULTS: Final = Faults()


def from_environment() -> Faults:
    """What the environment asks for; usually nothing."""
    return Faults(frozenset(filter(None, os.environ.get(VARIABLE, "").split(","))))
