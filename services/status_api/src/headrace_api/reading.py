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
from headrace_core.partitioner import partition_of
from headrace_core.registration import queries, routes
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import Request, Response
from headrace_core.registration.stage import RegistrationStage
from headrace_core.registration.store import Store
from headrace_core.registration.work import Work
from headrace_core.state import MemoryState, Overlay, State


class Reader:
    """Answers GET requests; may be called by many threads, each gets a connection of its own."""

    def __init__(self, path: Path, config: RegistrationConfig) -> None:
        self._path = path
        self._config = config
        self._stage = RegistrationStage(config)
        self._local = threading.local()

    def answer(self, request: Request, progress: Progress) -> Response:
        """Answer a request of registration.md 12 or 13. Writes get 405, everything before the first catch-up 503."""
        try:
            found = routes.route(self._config, Request("GET", request.path))
        except Refusal as refusal:
            return routes.problem(refusal, request.path)
        if request.method != "GET":
            return _read_only(request.path)
        if found.resource == "status":
            return self._status(request, progress)
        with self._snapshot() as db:
            if not _caught_up(db, progress):
                return _not_ready(progress, request.path)
            part = partition_of(found.root.encode(), len(progress.partitions))
            return queries.answer(SqliteState(db, part), self._config, request)

    def totals(self, progress: Progress) -> dict[str, Any]:
        """`counters` of the stage (all partitions together) and `roots` (registration.md 13)."""
        count = len(progress.partitions)
        with self._snapshot() as db:
            states: list[State] = [SqliteState(db, part) for part in range(count)] or [MemoryState()]
            counters: dict[str, int] = {}
            for state in states:
                for name, value in self._stage.gauges(state).items():
                    counters[name] = counters.get(name, 0) + value
            roots = {}
            for root in self._config.roots:
                state = states[partition_of(root.encode(), len(states))]
                roots[root] = queries.totals(Work(Store(Overlay(state)), self._config), root)
        return {"counters": {"registration": dict(sorted(counters.items()))}, "roots": roots}

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
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = connect(self._path)
        db.execute("BEGIN")
        try:
            yield db
        finally:
            db.execute("ROLLBACK")


def _caught_up(db: sqlite3.Connection, progress: Progress) -> bool:
    """Whether the snapshot holds what the ends were at start; a replica that has just been emptied does not."""
    if not progress.ready:
        return False
    offsets = dict(db.execute("SELECT part, next_offset FROM position"))
    return all(offsets.get(n, 0) >= p.target for n, p in enumerate(progress.partitions))


def _not_ready(progress: Progress, path: str) -> Response:
    body = problems.document(503, "not_ready", progress.why_not_ready, path.partition("?")[0])
    return Response(503, {"Content-Type": problems.MEDIA_TYPE, "Retry-After": "1"}, body)


def _read_only(path: str) -> Response:
    body = problems.document(405, "method_not_allowed", problems.WRITES_COME_LATER, path.partition("?")[0])
    return Response(405, {"Content-Type": problems.MEDIA_TYPE, "Allow": problems.READS}, body)
