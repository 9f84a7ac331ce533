"""Waiting for a sink or a state store that is down (spark-writer.md 10, case 11): pauses that double, until it has been
down for `sink_down_max_ms`. The tries count too: a host that is gone lets each of them wait for minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import structlog

from headrace_spark.database import StateDown
from headrace_spark.sinks.port import SinkDown

_log = structlog.get_logger("headrace_spark")
T = TypeVar("T")
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_LONGEST_TRY_S: Final = 180.0
"""A host that does not answer is given up by TCP before that; a try that lasted longer was at work."""


class Patience:
    """`stopping` says whether the job was told to stop; a wait then ends. `clock` in seconds."""

    def __init__(
        self,
        max_ms: int,
        stopping: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_ms = max_ms
        self.stopping = stopping
        self.sleep = sleep
        self._clock = clock

    def keep(self, work: Callable[[], T]) -> T:
        """Call `work` until it raises neither `SinkDown` nor `StateDown`; raises it when it is time to give up."""
        wait, waited = _FIRST_WAIT_S, 0.0
        while True:
            asked = self._clock()
            try:
                return work()
            except (SinkDown, StateDown) as error:
                took = self._clock() - asked
                waited += took if took < _LONGEST_TRY_S else 0
                if self.stopping() or waited * 1000 >= self._max_ms:
                    raise
                _log.warning(f"{error.code.removesuffix('_down')} down", error=str(error), waited_s=round(waited, 1))
                self.sleep(wait)
                waited += wait
                wait = min(wait * 2, _LONGEST_WAIT_S)
