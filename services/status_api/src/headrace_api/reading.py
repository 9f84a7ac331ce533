"""Answering reads from the replica: each answer is made in one SQLite snapshot, so it is of one state.

The queries themselves are pure (headrace_core.registration.queries); here a root finds its partition and the totals of
`/v1/status` are put together from all of them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace_api import problems
from headrace_api.progress import Progress
from headrace_api.sqlite_state import SqliteState, connect
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.partitioner import partition_of
from headrace_core.registration import queries, routes
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import Request, Response
from headrace_core.registration.stage import RegistrationStage
from headrace_core.registration.store import Store
from headrace_core.registration.work import Work
from headrace_core.stage import Stage
from headrace_core.state import MemoryState, Overlay, State


class Reader:
    """Answers GET requests; may be called by many threads, each gets a connection of its own."""

    def __init__(self, path: Path, config: RegistrationConfig, counters: Path | None = None) -> None:
        """`path`: the replica of registration; `counters`: that of the batching stage's counters, if there is one."""
        self._paths = {"registration": path} | ({"batching": counters} if counters else {})
        self._config = config
        self._stages: dict[str, Stage] = {
            "registration": RegistrationStage(config),
            "batching": BatchingStage(BatchingConfig()),
        }
        self._local = threading.local()

    def answer(self, request: Request, progress: Progress) -> Response:
        """Answer a GET of registration.md 12 or 13; everything before the first catch-up 503."""
        try:
            found = routes.route(self._config, request)
        except Refusal as refusal:
            return routes.problem(refusal, request.path)
        if found.resource == "status":
            return self._status(request, progress)
        with self._snapshot() as db:
            if not _caught_up(db, progress):
                return _not_ready(progress, request.path)
            part = partition_of(found.root.encode(), len(progress.partitions))
            return queries.answer(SqliteState(db, part), self._config, request)

    def totals(self, progress: Progress) -> dict[str, Any]:
        """`counters` of the stages (all partitions together) and `roots` (registration.md 13)."""
        count = len(progress.partitions)
        counters = {}
        for stage in self._paths:
            with self._snapshot(stage) as db:
                counters[stage] = self._counters(stage, _states(db, count))
        with self._snapshot() as db:
            states, roots = _states(db, count), {}
            for root in self._config.roots:
                state = states[partition_of(root.encode(), len(states))]
                roots[root] = queries.totals(Work(Store(Overlay(state)), self._config), root)
        return {"counters": counters, "roots": roots}

    def _counters(self, stage: str, states: list[State]) -> dict[str, int]:
        """Sums over all partitions, by name; a clock has no sum."""
        found: dict[str, int] = {}
        for state in states:
            for name, value in self._stages[stage].gauges(state).items():
                found[name] = found.get(name, 0) + value
        found.pop("clock", None)
        return dict(sorted(found.items()))

    def _status(self, request: Request, progress: Progress) -> Response:
        checked = queries.answer(MemoryState(), self._config, request)
        if checked.status != 200:
            return checked
        partitions = {
            str(n): {"offset": p.offset, "lag": p.lag, "source": p.source} for n, p in enumerate(progress.partitions)
        }
        body: dict[str, Any] = {"ready": progress.ready}
        if not progress.ready:
            body["reason"] = progress.why_not_ready
        body["config"] = asdict(self._config) | {"roots": dict(self._config.roots)}
        body["replica"] = {"topic": progress.topic, "kafka_up": progress.kafka_up, "partitions": partitions}
        return Response(200, {}, body | self.totals(progress))

    @contextmanager
    def _snapshot(self, name: str = "registration") -> Iterator[sqlite3.Connection]:
        db: sqlite3.Connection | None = getattr(self._local, name, None)
        if db is None:
            db = connect(self._paths[name])
            setattr(self._local, name, db)
        db.execute("BEGIN")
        try:
            yield db
        finally:
            db.execute("ROLLBACK")


def _states(db: sqlite3.Connection, partitions: int) -> list[State]:
    return [SqliteState(db, part) for part in range(partitions)] or [MemoryState()]


def _caught_up(db: sqlite3.Connection, progress: Progress) -> bool:
    """Whether the snapshot holds what the ends were at start; a replica that has just been emptied does not."""
    if not progress.ready:
        return False
    offsets = dict(db.execute("SELECT part, next_offset FROM position"))
    return all(offsets.get(n, 0) >= p.target for n, p in enumerate(progress.partitions))


def _not_ready(progress: Progress, path: str) -> Response:
    body = problems.document(503, "not_ready", progress.why_not_ready, path.partition("?")[0])
    return Response(503, {"Content-Type": problems.MEDIA_TYPE, "Retry-After": problems.RETRY_S}, body)
