"""Waiting for a sink or a state store that is down (spark-writer.md 10, case 11): pauses that double, up to
`sink_down_max_ms` in all."""

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


class Patience:
    """`stopping` says whether the job was told to stop; a wait then ends."""

    def __init__(
        self,
        max_ms: int,
        stopping: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._max_ms = max_ms
        self.stopping = stopping
        self.sleep = sleep

    def keep(self, work: Callable[[], T]) -> T:
        """Call `work` until it raises neither `SinkDown` nor `StateDown`; raises it when it is time to give up."""
        wait, waited = _FIRST_WAIT_S, 0.0
        while True:
            try:
                return work()
            except (SinkDown, StateDown) as error:
                if self.stopping() or waited * 1000 >= self._max_ms:
                    raise
                _log.warning(f"{error.code.removesuffix('_down')} down", error=str(error), waited_s=waited)
                self.sleep(wait)
                waited += wait
                wait = min(wait * 2, _LONGEST_WAIT_S)
