"""Where the pacing of a job is made: the one place to change when the capacity is leased (spark-writer.md 6)."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace_spark.host_pacing import HostPacer
from headrace_spark.pacing import Pacer, Pacing
from headrace_spark.settings import Settings


def in_driver(settings: Settings) -> Pacer:
    """Pacing of a job of which only the driver sends (path `direct`)."""
    return Pacer(settings.capacity, settings.headroom)


def in_every_process(settings: Settings) -> Callable[[], Pacing]:
    """What makes the pacing of a process, in the driver and in each Python worker (path `staged`): all of them together
    keep to the capacity. The function can be sent to tasks."""
    name = hashlib.sha256(f"{settings.job}\0{settings.state_dsn}".encode()).hexdigest()[:24]
    return functools.partial(HostPacer, Path(tempfile.gettempdir()) / f"headrace-{name}.capacity", settings.usable)
