"""Fakes that keep what they were given, and records to feed them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace_spark.outbox import OutboxDown
from headrace_spark.settings import Settings
from headrace_spark.sinks.port import Batch, Outcome, Sink
from headrace_spark.transforms.dead_letters import DeadLetter
from headrace_spark.transforms.records import Record, Report, report
from headrace_spark.transforms.rows import Request


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


class AtOnce:
    """A pacer that lets everything out; the moment is how many went before."""

    def __init__(self) -> None:
        self.costs: list[int] = []
        self.pauses: list[tuple[int | None, str]] = []

    def run(self, cost: int, work: Callable[[int], Any]) -> Any:
        self.costs.append(cost)
        return work(len(self.costs))

    def used(self) -> int:
        return sum(self.costs)

    def settled(self, cost: int, work: Callable[[int], Any], charge: Callable[[Any], int | None]) -> Any:
        found = self.run(cost, work)
        charge(found)
        return found

    def pause(self, retry_after_ms: int | None, scope: str) -> None:
        self.pauses.append((retry_after_ms, scope))

    def answered(self, *, well: bool) -> None:
        """Nobody wants to know."""


class Outbox:
    """Keeps the dead letters."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    def send(self, letters: Sequence[DeadLetter]) -> None:
        self.letters += letters


class Unheard:
    """An outbox of which nothing is acknowledged."""

    def send(self, letters: Sequence[DeadLetter]) -> None:
        assert letters
        raise OutboxDown(f"{len(letters)} records were not acknowledged")


class Watched:
    """A sink that counts its writes and can be killed before or after one, or be down for a while."""

    def __init__(self, inner: Sink, fail: dict[tuple[str, int], BaseException] | None = None) -> None:
        self.inner = inner
        self.fail = fail or {}
        self.writes = 0

    def prepare(self) -> None:
        self.inner.prepare()

    def outcomes(self, batch: Batch) -> dict[str, Outcome]:
        return self.inner.outcomes(batch)

    def write(self, batch: Batch, request: Request) -> Outcome:
        self.writes += 1
        self._maybe("before")
        outcome = self.inner.write(batch, request)
        self._maybe("after")
        return outcome

    def secure(self, batch: Batch, requests: Collection[str]) -> None:
        self.inner.secure(batch, requests)  # type: ignore[attr-defined]  # only tables that tasks write to have it

    def forget(self, batch: Batch) -> None:
        self._maybe("forget")
        self.inner.forget(batch)

    def close(self) -> None:
        self.inner.close()

    def _maybe(self, moment: str) -> None:
        error = self.fail.pop((moment, self.writes), None)
        if error is not None:
            raise error


def job(**changes: object) -> Settings:
    """Settings that work, with changes."""
    plain: dict[str, object] = {
        "job": "w",
        "kafka": "localhost:1",
        "checkpoint": "checkpoint",
        "sink": "sqlite:////tmp/sink.db",
        "state_dsn": "sqlite:////tmp/state.db",
        "capacity": 1000,
        "cost": "per_row(1)",
        "expected_cost_per_record": 2.0,
        "max": 3,
    }
    return Settings(**{**plain, **changes})  # type: ignore[arg-type]


def document(number: int, members: list[object], source: str = "te/device/a//", closed_at: int = 50) -> bytes:
    """A batch document whose id is the number in 32 hexadecimal digits."""
    whole = {"id": f"{number:032x}", "source": source, "time": 1, "opened_at": 2, "closed_at": closed_at}
    return json.dumps({**whole, "close": "timeout", "members": members}).encode()


def member(time: int, value: object, kind: str = "env") -> dict[str, object]:
    """One member."""
    return {"type": kind, "time": time, "received": time, "value": value}


def record(offset: int, value: bytes | None, headers: Sequence[tuple[str, bytes | None]] = ()) -> Record:
    """A Kafka record at partition 0."""
    return Record("headrace.batches", 0, offset, 1_000 + offset, b"te/device/a//", value, list(headers))


def reports(*values: bytes | None) -> list[Report]:
    """The reports of records at offsets 0, 1, ..."""
    return [report(record(offset, value), 100_000) for offset, value in enumerate(values)]
