"""The port to a destination that answers for each row, mode `keyed` (spark-writer.md 7 and 8).

Theory: a row that was sent is done, refused for now, of unknown outcome, or refused for good. Only the first and the
last are ends. The row's id and version make a second try harmless, so what is unknown is sent again. How often, how far
apart, and what then, is not for the destination to say: `keyed.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from headrace_spark.sinks.callables import Context
from headrace_spark.transforms.rows import Row

Became = Literal["inserted", "replaced", "repeat", "refused", "unknown", "rejected"]
AGAIN: Final = frozenset({"refused", "unknown"})
"""What is tried again."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of a row. `refused`: for now; `rejected`: for good; `repeat`: the version or a higher one was there;
    `detail` is for people."""

    became: Became
    detail: str = ""


class Answer(msgspec.Struct, frozen=True):
    """One verdict for each row, in order; or `too_large`: nothing was taken, because it is too much at once. `busy`:
    all that use the resource should pause, for `retry_after_ms` at least, if it is known. `charge`: units that the
    destination says it took."""

    verdicts: list[Verdict] = []
    too_large: bool = False
    busy: bool = False
    retry_after_ms: int | None = None
    charge: int | None = None

    @property
    def outcome(self) -> str:
        """Its class in metrics: "retry" if anything is tried again, else "reject" if anything was, else "done"."""
        became = {verdict.became for verdict in self.verdicts}
        if self.too_large or became & AGAIN:
            return "retry"
        return "reject" if "rejected" in became else "done"


class Destination(Protocol):
    """One implementation for each kind. `effects`: what is promised if a row is sent twice."""

    @property
    def effects(self) -> Literal["once", "at_least_once"]: ...

    def send(self, rows: Sequence[Row], context: Context) -> Answer:
        """One request. Raises `SinkDown` if it cannot have arrived; `ConfigError` if no request can ever be taken."""
        ...

    def close(self) -> None:
        """Give connections back."""
        ...


def all_of(rows: Sequence[Row], became: Became, detail: str = "") -> list[Verdict]:
    """The same verdict for every row."""
    return [Verdict(became, detail)] * len(rows)
