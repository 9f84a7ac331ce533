"""The moment at which a change of capacity is in force: all surplus confirmed or expired (capacity.md 13)."""

from __future__ import annotations

import threading

from headrace_core.capacity.protocol import LeaseStore

POLL_MS = 20


class InForce:
    """Handle for one change; `version` is the configuration version that the store gave it."""

    def __init__(self, store: LeaseStore, resource: str, version: int) -> None:
        self._store = store
        self._resource = resource
        self.version = version

    def reached(self) -> bool:
        """Ask the store. Raises what the store raises when it does not answer."""
        return self._store.status(self._resource).in_force_version >= self.version

    def wait(self, timeout_ms: int) -> bool:
        """Wait for it, about `timeout_ms` at most; False: not yet in force."""
        for _ in range(max(0, timeout_ms) // POLL_MS):
            if self.reached():
                return True
            threading.Event().wait(POLL_MS / 1000)
        return self.reached()
