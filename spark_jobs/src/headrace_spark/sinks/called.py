"""A function as the destination of mode `keyed` (spark-writer.md 7, "Callable"): each row has an outcome of its own.

The function returns None (all done), one `Result` for all rows, or a `WriteResult`. What it charges is settled, what it
refuses for now is tried again, what it rejects goes to the dead letters. If it raises `ConnectionRefusedError`, nothing
arrived and the job waits; after another `ConnectionError` or a `TimeoutError` every row is unknown. Anything else that
it raises or returns fails the micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from headrace_spark.sinks.answers import Answer, Became, Verdict, all_of
from headrace_spark.sinks.callables import (
    BadAnswer,
    CallableSink,
    Context,
    Result,
    WriteResult,
    checked,
    checked_charge,
)
from headrace_spark.sinks.port import SinkDown
from headrace_spark.transforms.rows import Row

_BECAME: Final[Mapping[str, Became]] = {"done": "inserted", "retry": "refused", "reject": "rejected"}


class CalledSink:
    """Implements `Destination`. Raises `ConfigError` if the function cannot be loaded."""

    def __init__(self, dsn: str) -> None:
        self._sink = CallableSink(dsn)
        self.effects: Literal["once", "at_least_once"] = "once" if self._sink.idempotent else "at_least_once"

    def send(self, rows: Sequence[Row], context: Context) -> Answer:
        """See `Destination`. Raises `BadAnswer`."""
        try:
            found = self._sink.call(rows, context)
        except ConnectionRefusedError as error:
            raise SinkDown(repr(error)) from error
        except (ConnectionError, TimeoutError) as error:
            return Answer(all_of(rows, "unknown", repr(error)))
        return _answer(rows, found)

    def close(self) -> None:
        """A function has nothing to give back."""


def _answer(rows: Sequence[Row], found: Any) -> Answer:
    match found:
        case None:
            return Answer(all_of(rows, "inserted"))
        case Result():
            every = msgspec.structs.replace(found, charge=None)
            return _told(rows, dict.fromkeys(range(len(rows)), every), found.charge)
        case WriteResult():
            return _told(rows, found.outcomes, found.charge)
        case _:
            raise BadAnswer(f"the function returned {type(found).__name__}, not a WriteResult, a Result or None")


def _told(rows: Sequence[Row], outcomes: Mapping[int, Result], charge: int | None) -> Answer:
    wrong = [index for index in outcomes if index not in range(len(rows))]
    if wrong:
        raise BadAnswer(f"the function returned an outcome for row {wrong[0]} of {len(rows)}")
    verdicts = [_verdict(outcomes.get(index, Result())) for index in range(len(rows))]
    waits = [one.retry_after_ms for one in outcomes.values() if one.outcome == "retry" and one.retry_after_ms > 0]
    after = max(waits, default=None)
    single = [one.charge for one in outcomes.values() if one.charge is not None]
    whole = sum(single) if charge is None and single else checked_charge(charge)
    return Answer(verdicts, busy=after is not None, retry_after_ms=after, charge=whole)


def _verdict(one: Result) -> Verdict:
    return Verdict(_BECAME[checked(one).outcome], one.detail)
