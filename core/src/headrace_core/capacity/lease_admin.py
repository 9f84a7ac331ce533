"""Administration of a lease store's resource: changes at run time and the status (capacity.md 13, 19).

A decrease applies to every reply at once. It is *in force* when every owner that held something at that moment has
confirmed a reply with the new configuration, or its leases of that moment have ended. An increase keeps what is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace_core.capacity import config_change
from headrace_core.capacity.lease_state import LeaseState
from headrace_core.capacity.lease_store import current_shares, expired, max_capacity
from headrace_core.capacity.protocol import (
    Capacity,
    OwnerStatus,
    StoreStatus,
    as_capacity,
    by_dimension,
)
from headrace_core.capacity.worth import worth_of


def configure(state: LeaseState, changes: Mapping[str, object], now_ms: int) -> LeaseState:
    """Apply `changes`; the new state has the next `config_version`. Raises `CapacityConfig`, then nothing changed."""
    return config_change.changed(expired(state, now_ms), changes)


def in_force_version(state: LeaseState, now_ms: int) -> int:
    """The configuration version up to which every decrease is in force."""
    open_ = [each.version for each in state.decreases if any(end > now_ms for end in each.waits.values())]
    return min(open_) - 1 if open_ else state.config_version


def status(state: LeaseState, now_ms: int) -> StoreStatus:
    """What is granted and used at `now_ms`."""
    state = expired(state, now_ms)
    share = current_shares(state)
    effective = state.effective(state.now_ms)
    owners = tuple(_owner_status(state, name, share[name], effective) for name in sorted(state.owners))
    return StoreStatus(
        resource=state.config.resource,
        shared_capacity=as_capacity(effective),
        max_capacity=max_capacity(state.config.shared_capacity, state.config.reserved_capacity),
        granted=_sum((each.granted for each in owners), effective),
        used=_sum((each.used for each in owners), effective),
        waiting=sum(max(0, each.want - each.share) for each in owners),
        pause_ms=max(0, state.pause_until_ms - state.now_ms),
        factor=state.factor,
        learning=state.now_ms < state.learn_until_ms,
        config_version=state.config_version,
        in_force_version=in_force_version(state, state.now_ms),
        owners=owners,
    )


def _owner_status(state: LeaseState, name: str, share: int, effective: Mapping[str, int]) -> OwnerStatus:
    owned = [index for index, lease in state.partitions.items() if lease.owner == name]
    granted = _sum((worth_of(state.config, effective, index) for index in owned), effective)
    reserve = any(slot.owner == name for slot in state.slots.values())
    owner = state.owners[name]
    return OwnerStatus(name, owner.want, share, len(owned), granted, owner.used, reserve)


def _sum(amounts: Iterable[Capacity], dimensions: Iterable[str]) -> Capacity:
    total = dict.fromkeys(dimensions, 0)
    for amount in amounts:
        for name, units in by_dimension(amount).items():
            total[name] = total.get(name, 0) + units
    return as_capacity({name: units for name, units in total.items() if name or set(total) == {""}})
