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

from headrace_core.errors import ConfigError
from headrace_spark.sinks.port import SinkDown
from headrace_spark.transforms.rows import Row

SCHEME: Final = "call:"


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
        """Call it. Raises `SinkDown` for a connection that was lost or timed out: the outcome is unknown then."""
        try:
            found = self.call(rows, context)
        except (ConnectionError, TimeoutError) as error:
            raise SinkDown(repr(error)) from error
        return Result() if found is None else found

    def call(self, rows: Sequence[Row], context: Context) -> Any:
        """What the function returns, unchanged; raises what it raises."""
        return self._function(rows, context)
