"""A lease store in memory, for tests and for owners inside one process (capacity.md 16).

It owns nothing but the states and a lock; all decisions are `lease_store`'s. The clock is given, in milliseconds, and
may be virtual.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from headrace_core.capacity import lease_admin, lease_store
from headrace_core.capacity.errors import LeaseStoreUnavailable, UnknownResource
from headrace_core.capacity.lease_state import LeaseState, new_state
from headrace_core.capacity.protocol import (
    LeaseReply,
    LeaseRequest,
    ResourceConfig,
    StoreStatus,
)


class MemoryStore:
    """`LeaseStore` over a clock. `reachable` False: every call raises `LeaseStoreUnavailable`, as a lost net would."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._states: dict[str, LeaseState] = {}
        self._generation = 1
        self.reachable = True

    def provision(self, resource: ResourceConfig) -> None:
        with self._lock:
            self._check()
            fresh = new_state(resource, self._clock_ms(), generation=self._generation)
            self._states.setdefault(resource.resource, fresh)

    def sync(self, request: LeaseRequest, timeout_ms: int = 2_000) -> LeaseReply:  # noqa: ARG002
        with self._lock:
            state, reply = lease_store.sync(self._state(request.resource), request, self._clock_ms())
            self._states[request.resource] = state
            return reply

    def configure(self, resource: str, **changes: object) -> int:
        with self._lock:
            state = lease_admin.configure(self._state(resource), changes, self._clock_ms())
            self._states[resource] = state
            return state.config_version

    def status(self, resource: str) -> StoreStatus:
        with self._lock:
            return lease_admin.status(self._state(resource), self._clock_ms())

    def state(self, resource: str) -> LeaseState:
        """The whole state, for tests. Raises `UnknownResource`."""
        with self._lock:
            return self._state(resource)

    def restart(self) -> None:
        """Lose the memory of all leases; the resources stay provisioned and the generation rises."""
        with self._lock:
            self._generation += 1
            for name, state in self._states.items():
                self._states[name] = new_state(
                    state.config, self._clock_ms(), generation=self._generation, learning=True
                )

    def _check(self) -> None:
        if not self.reachable:
            raise LeaseStoreUnavailable("the store is not reachable")

    def _state(self, resource: str) -> LeaseState:
        self._check()
        if resource not in self._states:
            raise UnknownResource(resource)
        return self._states[resource]
