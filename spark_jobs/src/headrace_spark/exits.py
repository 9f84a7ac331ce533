"""Exit codes (spark-writer.md 10). A supervisor restarts for 1 and 6; the others need a person."""

from __future__ import annotations

from typing import Final

from headrace_core.errors import HeadraceError

DONE: Final = 0
FAILURE: Final = 1
CONFIGURATION: Final = 2
CHECKPOINT: Final = 3
DATA_LOSS: Final = 4
CORRUPT_INPUT: Final = 5
SINK_DOWN: Final = 6


class CheckpointRefused(HeadraceError):
    """The checkpoint is not the one this job wrote with; nothing was written."""

    code = "checkpoint"


class CorruptInput(HeadraceError):
    """Too large a share of a micro-batch is refused: a wrong schema must not drain a topic."""

    code = "corrupt_input"


class Rejection(HeadraceError):
    """The destination refused the content of a request, and the job is to stop then (`on_reject = "stop"`)."""

    code = "sink_rejected"


class Stalled(HeadraceError):
    """Nothing has gone out for `max_wait_ms`, here or elsewhere, and this waited all the time."""

    code = "stalled"
    retry = True


class Superseded(HeadraceError):
    """Another start of the job sends now; this one must not."""

    code = "superseded"


class Stopping(HeadraceError):
    """The job was told to stop before this micro-batch began; it stays uncommitted."""

    code = "stopping"
    retry = True


def of_message(message: str) -> int:
    """The exit code for an error that only Spark's text describes."""
    if "headrace_spark.sinks.port.SinkDown" in message:  # a task gave up
        return SINK_DOWN
    lost = ("KAFKA_DATA_LOSS", "failOnDataLoss", "Some data may have been lost")
    return DATA_LOSS if any(mark in message for mark in lost) else FAILURE
