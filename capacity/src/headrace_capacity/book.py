"""A resource's lease state as bytes, for stores that keep it in a server: one value, changed in one atomic step.

    bytes --read--> LeaseState --core's step--> LeaseState --written--> bytes

All that is decided is decided in `headrace_core.capacity`; a store only has to read, call and write back atomically, by
its own server's clock. `generation` is above the wall clock's second of every earlier life of the resource, so that
epochs never repeat, also after the state was deleted (capacity.md 13.6, 16).
"""

from __future__ import annotations

import msgspec

from headrace_core.capacity import lease_admin, lease_store
from headrace_core.capacity.lease_state import LeaseState, new_state
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest, ResourceConfig, StoreStatus

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LeaseState)


def opened(config: ResourceConfig, now_ms: int, *, learning: bool) -> bytes:
    """The first state. `now_ms`: the server's wall clock, in milliseconds. `learning`: see `lease_state.new_state`."""
    return _encoder.encode(new_state(config, now_ms, generation=now_ms // 1000 + 1, learning=learning))


def synced(kept: bytes, request: LeaseRequest, now_ms: int) -> tuple[bytes | None, LeaseReply]:
    """The next state and the reply; None: nothing changed."""
    before = _decoder.decode(kept)
    after, reply = lease_store.sync(before, request, now_ms)
    return (None if after is before else _encoder.encode(after)), reply


def configured(kept: bytes, changes: dict[str, object], now_ms: int) -> tuple[bytes, int]:
    """The next state and its configuration version. Raises `CapacityConfig`."""
    after = lease_admin.configure(_decoder.decode(kept), changes, now_ms)
    return _encoder.encode(after), after.config_version


def status(kept: bytes, now_ms: int) -> StoreStatus:
    """What is granted and used now."""
    return lease_admin.status(_decoder.decode(kept), now_ms)
