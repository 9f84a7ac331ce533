"""What the two front ends share (capacity.md 19): the engine, its lock, listeners, the lease client, and their ends.

One lock guards engine and resource. Nothing of the user's runs with it held: callbacks have their executor or task,
listeners a thread of their own (`delivery.py`), lease calls another (`lease_client.py`), because stores block.
"""

from __future__ import annotations

import os
import threading
import uuid
import warnings
from collections.abc import Callable
from typing import Any

from headrace_core.capacity.config import BatcherConfig, change_config
from headrace_core.capacity.core import BatcherCore, Life
from headrace_core.capacity.delivery import Delivery, Listener, Token
from headrace_core.capacity.errors import BatcherError, ImproperOrder, LeaseStoreUnavailable
from headrace_core.capacity.lease_client import LeaseClient
from headrace_core.capacity.operation import Batch, Operation
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.resources import Resource, SharedResource
from headrace_core.capacity.units import Amount

CLOSE_S = 5.0


def chance() -> float:
    """A number in [0, 1) from the operating system."""
    return int.from_bytes(os.urandom(4)) / 2**32


def owner_id() -> str:
    """`host:pid:uuid4`, new for every process start (capacity.md 1)."""
    return f"{os.uname().nodename}:{os.getpid()}:{uuid.uuid4()}"


class Front:
    """Base of `Batcher` and `AsyncBatcher`; `config`: the keys of capacity.md 2. Raises CapacityConfig."""

    def __init__(
        self, limiter: Resource | None, clock: Callable[[], int], rng: Callable[[], float], config: dict[str, Any]
    ) -> None:
        settings = change_config(BatcherConfig(), {"burst_ms": 0, **config})
        if settings.pacing == "slice":
            warnings.warn("slice pacing holds no limit in a window", stacklevel=3)
        self._core = BatcherCore(settings, limiter, rng)
        self._clock = clock
        self._lock = threading.RLock()
        self._delivery = Delivery()
        self._leases: LeaseClient | None = None
        self._handed_back = False

    @property
    def target(self) -> int | dict[str, int]:
        """Cost units buffered, or raised and not yet done."""
        with self._lock:
            return self._core.target

    @property
    def inflight(self) -> int:
        """Concurrency slots taken."""
        with self._lock:
            return self._core.inflight

    @property
    def buffered(self) -> int:
        with self._lock:
            return self._core.buffered

    @property
    def events_lost(self) -> int:
        """Events that did not fit into the listeners' queue."""
        return self._delivery.lost

    def configure(self, **changes: Any) -> None:
        """Change settings before start. Raises InitializationOnly afterwards, CapacityConfig for a wrong value."""
        with self._lock:
            self._core.configure(**changes)

    def throttled(self, share: float) -> None:
        """Share of refused or timed-out requests of the last second, 0 to 1 (capacity.md 15)."""
        with self._lock:
            if self._core.limiter is not None:
                self._core.limiter.throttled(share)

    def add_listener(self, fn: Listener) -> Token:
        """`fn(event)` runs in a thread of its own, in the order of the events; a slow one delays no flush."""
        return self._delivery.add(fn)

    def remove_listener(self, token: Token) -> None:
        self._delivery.remove(token)

    def _now_ms(self) -> int:
        return self._clock() // NS_PER_MS

    def _settle(self, batch: Batch, op: Operation, charge: Amount) -> None:
        with self._lock:
            self._core.settle(batch, op, charge, self._clock())

    def _publish(self) -> None:
        """With the lock held: events go out, the lease client sees a changed need."""
        events = self._core.take_events()
        if events:
            self._delivery.put(events)
        if self._leases is not None and self._core.life is not Life.STOPPED:
            self._leases.poke()

    def _check_new(self) -> None:
        if self._core.life is not Life.NEW:
            raise ImproperOrder(f"cannot start: {self._core.life.value}")

    def _start_limiter(self) -> None:
        """Raises LeaseStoreUnavailable, and what the resource refuses."""
        limiter = self._core.limiter
        if limiter is None:
            return
        try:
            limiter.start(self._now_ms())
        except BatcherError:
            raise
        except Exception as error:
            raise LeaseStoreUnavailable(f"the lease store did not answer: {error}") from error
        if isinstance(limiter, SharedResource):
            limiter.guard = self._lock
            self._leases = LeaseClient(limiter, owner_id(), lock=self._lock, clock=self._clock, changed=self._publish)

    def _take_returned(self) -> list[Operation]:
        """What stop hands back, once."""
        returned = [] if self._handed_back else self._core.returned
        self._handed_back = True
        return returned

    def _close(self) -> None:
        """After the loop: give everything back, tell the listeners, end the threads."""
        if self._leases is not None:
            self._leases.stop()
        with self._lock:
            if self._core.limiter is not None:
                self._core.limiter.stop(self._now_ms())
            self._publish()
        self._delivery.close(CLOSE_S)
