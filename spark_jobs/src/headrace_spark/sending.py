"""Sending by tasks (spark-writer.md 1, 4, 6 and 7): what the driver planned goes out in Python workers.

Theory: the plan of a micro-batch is made once, in the driver, of all that the tasks decoded; so requests and ids are
the same whatever the number of tasks. It is a set of queues. The requests of one queue go out strictly one after the
other (a lane); queues do not wait for each other (mode `keyed`: a queue for each request). Which task has which queue,
and how many go out at one time, changes nothing but the speed.

The end of a request is a text, recorded in the state store (`hr_sent`) before the next one of its queue goes out. A
task that is repeated begins with what is recorded, so at most the one request of a queue whose outcome is unknown goes
twice. What a task reports counts only if Spark accepted the attempt.

A worker may outlive its driver for a moment. So each start of the job leaves its mark in the state store, and the
transaction that records a dispatch looks for it: a worker of an earlier start sends nothing any more.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from headrace_core.errors import HeadraceError
from headrace_spark.ledger import Ledger
from headrace_spark.patience import Patience
from headrace_spark.seen import Seen
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.rows import Request


class Packed(msgspec.Struct, frozen=True):
    """A request with the lane it belongs to, whose first offset in the micro-batch is `first`. In mode `keyed` it has
    no lane."""

    topic: str
    partition: int
    first: int
    request: Request


Queue = Sequence[Packed]
"""Requests that go out one after the other."""


class Carried(msgspec.Struct):
    """What became of the requests, by their ids; `retries`: tries after the first that no end tells of, by the same.
    `failure`: the pickled error that ended it before all were sent. `seen`: what was seen on the way."""

    ends: dict[str, str] = {}
    retries: dict[str, int] = {}
    failure: bytes | None = None
    seen: Seen = msgspec.field(default_factory=Seen)

    def check(self) -> None:
        """Raise the failure."""
        raise_failure(self.failure)


def failure_of(error: HeadraceError) -> bytes:
    """For the report of a task that an error of the job itself ended; repeating the task would change nothing."""
    return pickle.dumps((type(error), error.args, error.__dict__))


def raise_failure(failure: bytes | None) -> None:
    """Raise in the driver what a task reported, if anything."""
    if failure is not None:
        kind, args, more = pickle.loads(failure)
        error: HeadraceError = kind.__new__(kind)  # its constructor may want something else than it hands on
        error.args = args
        error.__dict__.update(more)
        raise error


class Sender(Protocol):
    """Sends one request after the other, for several threads at a time."""

    def send(self, batch: Batch, one: Packed) -> tuple[str, int]:
        """Until there is an end; returns it, and how many tries after the first it does not tell of."""
        ...

    def stands(self, end: str) -> bool:
        """Whether a recorded end is still one."""
        ...


class Courier(Protocol):
    """Brings requests out, somewhere."""

    def carry(self, batch: Batch, queues: Sequence[Queue]) -> Carried:
        """Send each queue's requests in order; returns when all have ended. Raises what ended it."""
        ...


class Carrier:
    """Sends queues from this process, `at_once` of them at one time. Each thread begins a queue when it has ended one.
    `halt` is set when something failed: then no queue goes on."""

    def __init__(
        self,
        sender: Sender,
        ledger: Ledger,
        patience: Patience,
        at_once: int = 1,
        halt: threading.Event | None = None,
        advanced: Callable[[], None] = lambda: None,
    ) -> None:
        self._sender = sender
        self._ledger = ledger
        self._patience = patience
        self._at_once = at_once
        self._halt = halt or threading.Event()
        self._advanced = advanced

    def carry(self, batch: Batch, queues: Sequence[Queue]) -> Carried:
        """See `Courier`. Of several errors the first is raised."""
        known = self._patience.keep(lambda: self._ledger.sent(batch))
        found, errors = Carried({}, {}), list[BaseException]()

        def run(queue: Queue) -> None:
            try:
                for one in queue:
                    if self._halt.is_set():
                        return
                    self._one(batch, one, known, found)
            except BaseException as error:
                errors.append(error)
                self._halt.set()

        if self._at_once == 1:
            for queue in queues:
                run(queue)
        else:
            with ThreadPoolExecutor(self._at_once, thread_name_prefix="headrace-queue") as pool:
                list(pool.map(run, queues))
        if errors:
            raise errors[0]
        return found

    def _one(self, batch: Batch, one: Packed, known: Mapping[str, str], found: Carried) -> None:
        end = known.get(one.request.id)
        if end is None or not self._sender.stands(end):
            made, more = self._sender.send(batch, one)
            end = made
            self._patience.keep(lambda: self._ledger.record_sent(batch, one.request.id, made))
            if more:
                found.retries[one.request.id] = more
        found.ends[one.request.id] = end
        self._advanced()


def failed(error: HeadraceError) -> Carried:
    """See `failure_of`."""
    return Carried(failure=failure_of(error))


def shares(queues: Sequence[Queue], count: int) -> list[list[Queue]]:
    """The queues of each of at most `count` tasks, so that their rows are about even."""
    sizes = {number: sum(len(one.request.rows) for one in queue) for number, queue in enumerate(queues)}
    parts: list[list[int]] = [[] for _ in range(max(1, min(count, len(queues))))]
    loads = [0] * len(parts)
    for number in sorted(sizes, key=lambda at: (-sizes[at], at)):
        least = loads.index(min(loads))
        parts[least].append(number)
        loads[least] += sizes[number]
    return [[queues[number] for number in sorted(part)] for part in parts]
