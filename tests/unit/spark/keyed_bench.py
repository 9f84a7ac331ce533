"""A destination of tests, and everything around a `KeyedWriter`."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from headrace_spark.attempts import Attempts, learning
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.keyed import KeyedSender, KeyedWriter
from headrace_spark.ledger import Ledger
from headrace_spark.patience import Patience
from headrace_spark.sending import Carrier
from headrace_spark.settings import Settings
from headrace_spark.sinks.answers import Answer, Destination, Verdict
from headrace_spark.sinks.callables import Context
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.records import Place, Record, report
from headrace_spark.transforms.retries import Delayed
from headrace_spark.transforms.rows import Row
from tests.unit.spark.fakes import AtOnce, Outbox, job

Step = Callable[["Store", Sequence[Row]], Answer]


class Store:
    """Implements `Destination`; a row stays with its highest version. `script` says what the next calls do, `always`
    what those without an entry do; without both it behaves."""

    effects: Literal["once"] = "once"

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], Row] = {}
        self.calls: list[tuple[Context, list[Row]]] = []
        self.script: deque[Step | BaseException] = deque()
        self.always: Step | None = None

    def send(self, rows: Sequence[Row], context: Context) -> Answer:
        self.calls.append((context, list(rows)))
        step = self.script.popleft() if self.script else self.always or behave
        if isinstance(step, BaseException):
            raise step
        return step(self, rows)

    def close(self) -> None:
        """Nothing to close."""

    def take(self, row: Row) -> Verdict:
        known = self.rows.get(row.id)
        if known is not None and known.version >= row.version:
            return Verdict("repeat")
        self.rows[row.id] = row
        return Verdict("inserted" if known is None else "replaced")


def behave(store: Store, rows: Sequence[Row]) -> Answer:
    return Answer([store.take(row) for row in rows])


def say(became: Any, *metrics: str, **more: Any) -> Step:
    """This verdict for rows of these metrics, or for all; the others are taken."""

    def step(store: Store, rows: Sequence[Row]) -> Answer:
        told = [not metrics or row.metric in metrics for row in rows]
        return Answer(
            [Verdict(became, "told to") if mine else store.take(row) for row, mine in zip(rows, told, strict=True)],
            **more,
        )

    return step


def at_most(count: int) -> Step:
    """More rows at once are too many."""
    return lambda store, rows: Answer(too_large=True) if len(rows) > count else behave(store, rows)


class Pacer(AtOnce):
    """Keeps pauses and what was settled."""

    def __init__(self) -> None:
        super().__init__()
        self.charges: list[int] = []
        self.answers: list[bool] = []

    def settled(self, cost: int, work: Callable[[int], Any], charge: Callable[[Any], int | None]) -> Any:
        found = self.run(cost, work)
        charged = charge(found)
        if charged is not None:
            self.charges.append(charged)
        return found

    def answered(self, *, well: bool) -> None:
        self.answers.append(well)


class Bench:
    """Everything around a `KeyedWriter`; `write` builds a new one each time, as a new process would."""

    def __init__(self, folder: Path, destination: Destination | None = None) -> None:
        self.folder = folder
        self.store = Store()
        self.destination: Any = destination or self.store
        self.outbox, self.retries, self.pacer = Outbox(), Outbox(), Pacer()
        self.slept: list[float] = []
        self.ledger = Ledger(Database(f"sqlite://{folder}/state.db"), "w")
        self.ledger.prepare()
        self.now_ms = 1_000_000

    def settings(self, **changes: object) -> Settings:
        return job(**{"sink": "http://localhost:1/_bulk", "prefix": "h.", **changes})

    def write(self, batch: int, records: Sequence[Record], **changes: object) -> Counts:
        settings = self.settings(**changes)
        patience = Patience(settings.sink_down_max_ms, sleep=self.slept.append)
        learned = learning(settings)
        attempts = Attempts(settings, self.ledger, self.destination, self.pacer, patience, learned)
        here = Carrier(KeyedSender(settings, attempts), self.ledger, patience)
        writer = KeyedWriter(
            settings, self.ledger, here, self.outbox, self.retries, patience, now_ms=lambda: self.now_ms
        )
        if writer.done(Batch("q", batch)):
            return Counts()
        topic, carried = settings.again_topic, settings.carried
        found = [report(one, 100_000, settings.dearest, topic, carried) for one in records]
        return writer.write(Batch("q", batch), found, lambda places: fetch(records, places))

    def take_retries(self) -> list[Delayed]:
        found, self.retries.letters = self.retries.letters, []
        return found  # type: ignore[return-value]

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.folder / "state.db") as db:
            return db.execute(query).fetchall()


def fetch(records: Sequence[Record], places: Sequence[Place]) -> list[Record]:
    return [one for one in records if (one.topic, one.partition, one.offset) in set(places)]


def back(delayed: Sequence[Delayed], first: int = 0) -> list[Record]:
    """Delayed records as they come back from the time buffer."""
    return [
        Record("h.w.again", 1, first + number, 5_000, one.key, one.value, [*one.headers, ("tl-source", b"x")])
        for number, one in enumerate(delayed)
    ]


def check(counts: Counts) -> None:
    """The sums of `counts.py`."""
    assert counts.records == counts.ticks + counts.rejected + counts.documents + counts.documents_repeated
    assert counts.members == counts.members_taken + counts.members_rejected
    ends = (counts.inserted, counts.replaced, counts.repeats, counts.rows_refused, counts.rows_postponed)
    assert counts.rows == sum(ends)
