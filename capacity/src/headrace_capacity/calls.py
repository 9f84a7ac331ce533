"""Calls with a deadline: whatever a server or a network does, the caller goes on in time (capacity.md 16).

    caller --work--> worker thread (owns the connection) --result--> caller
       '--deadline over--> LeaseStoreUnavailable; the worker is abandoned and ends with the call it hangs in

An abandoned call may still take effect at the server. That is harmless: a lost reply is a case of the protocol, and the
owner repeats the call under a new `seq`. A worker belongs to the process that made it; a forked child makes its own.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any, Generic, Protocol, TypeVar

from headrace_core.capacity.errors import BatcherError, LeaseStoreUnavailable


class Closable(Protocol):
    def close(self) -> object: ...


Connection = TypeVar("Connection", bound=Closable)
Result = TypeVar("Result")


class Caller(Generic[Connection]):
    """Runs `work(connection)`, one at a time. `connect` opens a connection; it is opened again after every failure."""

    def __init__(self, connect: Callable[[], Connection], *, name: str) -> None:
        self._connect = connect
        self._name = name
        self._guard = threading.Lock()
        self._worker: _Worker[Connection] | None = None

    def run(self, work: Callable[[Connection], Result], timeout_ms: int) -> Result:
        """The result of `work`. Raises `LeaseStoreUnavailable` after `timeout_ms`, and for every error of the client
        library; the errors of the protocol as they are."""
        future: Future[Any] = Future()
        with self._guard:
            worker = self._ready()
            worker.jobs.put((work, future))
        try:
            result: Result = future.result(timeout_ms / 1000)
        except Late:
            self._abandon(worker)
            raise LeaseStoreUnavailable(f"{self._name} did not answer within {timeout_ms} ms") from None
        except BatcherError:
            raise
        except Exception as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise LeaseStoreUnavailable(f"{self._name}: {said}") from error
        return result

    def close(self) -> None:
        """End the worker and its connection; a later call begins anew."""
        with self._guard:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.jobs.put(None)

    def _ready(self) -> _Worker[Connection]:
        if self._worker is None or self._worker.pid != os.getpid():
            self._worker = _Worker(self._connect, self._name)
        return self._worker

    def _abandon(self, worker: _Worker[Connection]) -> None:
        with self._guard:
            if self._worker is worker:
                self._worker = None
        worker.jobs.put(None)


class _Worker(Generic[Connection]):
    def __init__(self, connect: Callable[[], Connection], name: str) -> None:
        self.pid = os.getpid()
        self.jobs: queue.SimpleQueue[tuple[Callable[[Connection], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._connect = connect
        self._connection: Connection | None = None
        threading.Thread(target=self._run, name=f"headrace-{name}", daemon=True).start()

    def _run(self) -> None:
        while (job := self.jobs.get()) is not None:
            work, future = job
            try:
                if self._connection is None:
                    self._connection = self._connect()
                future.set_result(work(self._connection))
            except BatcherError as error:
                future.set_exception(error)
            except Exception as error:
                self._disconnect()
                future.set_exception(error)
        self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # it is of no use any more, however it ends
                return
