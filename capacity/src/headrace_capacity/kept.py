"""A resource's lease state as bytes in a server: one value, changed in one atomic step.

    bytes --read--> LeaseState --core's step--> LeaseState --written--> bytes

All that is decided is decided in `headrace_core.capacity`; a store only reads, lets core decide and writes back
atomically, by its own server's clock. The first state's generation is above the wall clock's second, so that epochs
never repeat, also after the state was deleted (capacity.md 13.6, 16).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic

import msgspec

from headrace_capacity.calls import Caller, Connection, Result
from headrace_core.capacity import lease_admin, lease_store
from headrace_core.capacity.lease_state import LeaseState, new_state
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest, ResourceConfig, StoreStatus

Step = Callable[[bytes, int], tuple[bytes | None, Result]]
"""(state, the server's time in ms) -> (the next state, None if nothing changed; what the call answers)."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LeaseState)


class KeptStore(ABC, Generic[Connection]):
    """`LeaseStore` over a server that keeps bytes. `call_timeout_ms`: for the calls that name no limit themselves."""

    durable = True

    def __init__(self, name: str, call_timeout_ms: int) -> None:
        self._timeout_ms = call_timeout_ms
        self._caller = Caller(self._connect, name=name)

    @abstractmethod
    def _connect(self) -> Connection:
        """A new connection."""

    @abstractmethod
    def _create(self, connection: Connection, resource: ResourceConfig) -> None:
        """Keep `opened(...)` for the resource if nothing is kept yet."""

    @abstractmethod
    def _step(self, connection: Connection, resource: str, step: Step[Result]) -> Result:
        """Read, step and write as one. Raises `UnknownResource`."""

    @abstractmethod
    def _look(self, connection: Connection, resource: str) -> tuple[bytes, int]:
        """What is kept, and the server's time in ms. Raises `UnknownResource`."""

    def provision(self, resource: ResourceConfig) -> None:
        self._caller.run(lambda connection: self._create(connection, resource), self._timeout_ms)

    def sync(self, request: LeaseRequest, timeout_ms: int = 2_000) -> LeaseReply:
        def step(kept: bytes, now_ms: int) -> tuple[bytes | None, LeaseReply]:
            before = _decoder.decode(kept)
            after, reply = lease_store.sync(before, request, now_ms)
            return (None if after is before else _encoder.encode(after)), reply

        return self._caller.run(lambda connection: self._step(connection, request.resource, step), timeout_ms)

    def configure(self, resource: str, **changes: object) -> int:
        def step(kept: bytes, now_ms: int) -> tuple[bytes | None, int]:
            after = lease_admin.configure(_decoder.decode(kept), changes, now_ms)
            return _encoder.encode(after), after.config_version

        return self._caller.run(lambda connection: self._step(connection, resource, step), self._timeout_ms)

    def status(self, resource: str) -> StoreStatus:
        kept, now_ms = self._caller.run(lambda connection: self._look(connection, resource), self._timeout_ms)
        return lease_admin.status(_decoder.decode(kept), now_ms)

    def close(self) -> None:
        """Give the connection back; a later call opens another one."""
        self._caller.close()


def opened(config: ResourceConfig, now_ms: int, *, learning: bool) -> bytes:
    """The first state. `now_ms`: the server's wall clock, in milliseconds. `learning`: see `lease_state.new_state`."""
    return _encoder.encode(new_state(config, now_ms, generation=now_ms // 1000 + 1, learning=learning))
