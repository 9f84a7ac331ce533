"""A function as a destination (spark-writer.md 7, "Callable"): `sink = "call:module:function"`.

`function(rows, context)` returns a `Result`, or None for done. It is called at least once for each request; with an
attribute `idempotent = True` it promises to honour the request id, so that a repeat has no effect. In mode `keyed` it
may honour the versions of the rows instead, and return a `WriteResult`, which tells rows apart (`called.py`).
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from headrace_core.errors import ConfigError, HeadraceError
from headrace_spark.sinks.port import SinkDown
from headrace_spark.transforms.rows import Row

SCHEME: Final = "call:"
OUTCOMES: Final = ("done", "retry", "reject")


class Context(msgspec.Struct, frozen=True):
    """What a call may know. `partition` is the lane's, or -1 in mode `keyed`, where a request has rows of several; a
    request that goes again with fewer rows has another id there. `attempt` counts from 1; after `deadline_ns`
    (monotonic) nobody waits for the answer; `cancelled` is set when its task goes no further. `headers`: those of the
    Kafka records that are carried, by document, so `headers.get(row.batch, {})` are a row's."""

    query_id: str
    batch_id: int
    partition: int
    attempt: int
    request_id: str
    deadline_ns: int
    cancelled: threading.Event
    headers: Mapping[str, Mapping[str, str]] = {}


class Result(msgspec.Struct, frozen=True):
    """What became of a request. `retry_after_ms`: not before that; `charge`: units that the destination says it
    took; `busy`: all that use the resource pause, as they do for a `retry_after_ms`."""

    outcome: Literal["done", "retry", "reject"] = "done"
    detail: str = ""
    retry_after_ms: int = 0
    charge: int | None = None
    busy: bool = False


class WriteResult(msgspec.Struct, frozen=True):
    """What became of the rows of a request: `outcomes` by their index, and rows without one are done. `charge`: units
    that the destination says the whole request took; None: the sum of what the outcomes say."""

    outcomes: Mapping[int, Result] = {}
    charge: int | None = None


class BadAnswer(HeadraceError):
    """The function returned what it must not; a defect of the function."""

    code = "bad_answer"


def checked(one: Result) -> Result:
    """It, if it has an outcome that there is and a charge that can be. Raises `BadAnswer`."""
    if one.outcome not in OUTCOMES:
        raise BadAnswer(f"the function returned the outcome {one.outcome!r}")
    checked_charge(one.charge)
    return one


def checked_charge(charge: int | None) -> int | None:
    """See `checked`."""
    if charge is not None and (isinstance(charge, bool) or not isinstance(charge, int) or charge < 0):
        raise BadAnswer(f"the function returned the charge {charge!r}, which is no integer of at least 0")
    return charge


class CallableSink:
    """Raises `ConfigError` if the function cannot be loaded."""

    def __init__(self, dsn: str) -> None:
        module, _, name = dsn.removeprefix(SCHEME).partition(":")
        try:
            self._function: Callable[[Sequence[Row], Context], Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError("sink", f"{dsn} cannot be loaded: {error}") from None
        self.idempotent = bool(getattr(self._function, "idempotent", False))

    def write(self, rows: Sequence[Row], context: Context) -> Result:
        """Call it. Raises `SinkDown` for a connection that was lost or timed out: the outcome is unknown then; and
        `BadAnswer`."""
        try:
            found = self.call(rows, context)
        except (ConnectionError, TimeoutError) as error:
            raise SinkDown(repr(error)) from error
        if found is None:
            return Result()
        if not isinstance(found, Result):
            raise BadAnswer(f"the function returned {type(found).__name__}, not a Result or None")
        return checked(found)

    def call(self, rows: Sequence[Row], context: Context) -> Any:
        """What the function returns, unchanged; raises what it raises."""
        return self._function(rows, context)
