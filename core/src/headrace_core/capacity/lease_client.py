"""The thread that talks to the lease store for one shared resource (capacity.md 13).

The agent decides when and what; this thread makes the call outside the lock and hands the reply back. It never holds
the lock while the store is away, so a slow store delays no flush: deadlines pass meanwhile, as they must.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.errors import UnknownResource
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest
from headrace_core.capacity.resources import SharedResource

NS_PER_MS = 1_000_000


class LeaseClient:
    """`lock` guards `resource`; `changed` is called with it held after each exchange."""

    def __init__(
        self,
        resource: SharedResource,
        owner: str,
        *,
        lock: AbstractContextManager[Any],
        clock: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        self._resource = resource
        self._lease = resource.lease
        self._agent = LeaseAgent(resource, owner)
        self._lock = lock
        self._clock = clock
        self._changed = changed
        self._wake = threading.Event()
        self._ending = False
        self._planned_ms: int | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        """The need may have changed; call with the lock held."""
        next_ms = self._agent.next_call_ms(self._now_ms())
        if next_ms is not None and (self._planned_ms is None or next_ms < self._planned_ms):
            self._wake.set()

    def stop(self) -> None:
        """One last exchange gives everything back; waits for it, one call's time at most."""
        with self._lock:
            self._resource.give_back(self._now_ms())
            self._ending = True
        self._wake.set()
        if self._thread.ident is not None:  # else the batcher's start failed: nothing was ever asked for
            self._thread.join(2 * self._lease.call_timeout_ms / 1000)

    def _run(self) -> None:
        while not self._ending:
            self._wait()
            if not self._ending:
                self._exchange()
        self._exchange()

    def _wait(self) -> None:
        while not self._ending:
            with self._lock:
                self._wake.clear()
                now_ms = self._now_ms()
                self._agent.follow_time(now_ms)
                call_ms = self._agent.next_call_ms(now_ms)
                times = [time for time in (call_ms, self._agent.next_time_ms()) if time is not None]
                self._planned_ms = min(times, default=None)
                self._changed()
            if call_ms is not None and call_ms <= now_ms:
                return
            wait_ms = self._lease.renew_interval_ms if self._planned_ms is None else self._planned_ms - now_ms
            self._wake.wait(max(1, wait_ms) / 1000)

    def _exchange(self) -> None:
        with self._lock:
            ask = self._agent.begin(self._now_ms())
        try:
            reply = self._call(ask)
        except Exception as error:
            with self._lock:
                self._report(error)
                self._agent.failed(ask.seq, self._now_ms())
                self._changed()
            return
        with self._lock:
            try:
                self._agent.receive(ask.seq, reply, self._now_ms(), denied=getattr(reply, "denied", ()))
            except Exception as error:
                self._report(error)
            self._changed()

    def _report(self, error: Exception) -> None:
        """A reply that makes no sense is told and not used; what is held ends at its deadline."""
        self._resource.log.emit("error", 0, str(error), error=type(error).__name__)

    def _call(self, ask: LeaseRequest) -> LeaseReply:
        """One call. A store that lost the resource is told of it again; the call after that can work."""
        try:
            return self._resource.store.sync(ask, self._lease.call_timeout_ms)
        except UnknownResource:
            self._resource.store.provision(self._resource.config.for_store(self._lease))
            raise

    def _now_ms(self) -> int:
        return self._clock() // NS_PER_MS
