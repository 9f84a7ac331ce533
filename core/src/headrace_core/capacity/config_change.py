"""The configuration of a resource changes at run time, and a store that forgot a change hears of it (capacity.md 13).

    configured as provisioned (version 1) --set--> version 2, 3, ...
                '--store loses its memory--> version 1 --an owner tells version n--> version n

A store without durable memory forgets changes when it is restarted, and whoever asks first then provisions what its own
file says: a capacity that was lowered would silently be high again. So owners are told the configuration with its
version, and say it with each call if it was changed. A store in which nobody has set anything since its start takes the
highest version that it hears of; one in which somebody has, or which never forgets, keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from headrace_core.capacity.errors import CapacityConfig
from headrace_core.capacity.lease_state import Decrease, LeaseState
from headrace_core.capacity.protocol import LeaseRequest, RampSetting, ResourceConfig, by_dimension

CHANGEABLE = frozenset(
    {"shared_capacity", "reserved_capacity", "max_instances", "total_capacity", "ramp", "adaptive", "handover"}
)


def changed(state: LeaseState, changes: Mapping[str, object]) -> LeaseState:
    """`state`, whose leases are those of now, under the next `config_version`. Raises `CapacityConfig`."""
    for name in changes:
        if name not in CHANGEABLE:
            raise CapacityConfig(name, "cannot be changed at run time")
    config = _with(state.config, changes)
    return replace(_under(state, config, state.config_version + 1), told=False)


def remembered(state: LeaseState, request: LeaseRequest) -> LeaseState:
    """`state` under the configuration that an owner tells, if this store forgot it; else `state` itself.

    What cannot be changed at run time stays as it is here. A configuration that does not fit that is not taken; the
    owner sees an older version in the reply, and says so.
    """
    config, version = request.config, request.config_version
    knows_less = (state.config_version == 1 or state.told) and state.config_version < version
    if config is None or not knows_less:
        return state
    try:
        told = _with(state.config, {name: getattr(config, name) for name in CHANGEABLE})
        return replace(_under(state, told, version), told=True)
    except CapacityConfig:
        return state


def _under(state: LeaseState, config: ResourceConfig, version: int) -> LeaseState:
    targets = by_dimension(config.shared_capacity)
    if targets.keys() != state.ramps.keys():
        raise CapacityConfig("shared_capacity", "the dimensions are fixed")
    ramps = {name: r.change(state.config.ramp, state.now_ms, targets[name]) for name, r in state.ramps.items()}
    after = replace(state, config=config, ramps=ramps, config_version=version)
    if not _is_less(state, after):
        return after
    return replace(after, decreases=(*after.decreases, Decrease(version, _waits(state))))


def _with(config: ResourceConfig, changes: Mapping[str, object]) -> ResourceConfig:
    members: dict[str, Any] = {name: getattr(config, name) for name in config.__struct_fields__}
    members.update(changes)
    if members["ramp"] is not None:
        members["ramp"] = RampSetting(*members["ramp"])
    return ResourceConfig(**members)


def _is_less(before: LeaseState, after: LeaseState) -> bool:
    old, new = before.effective(before.now_ms), after.effective(after.now_ms)
    reserved, kept = by_dimension(before.config.reserved_capacity), by_dimension(after.config.reserved_capacity)
    return (
        any(new[name] < units for name, units in old.items())
        or any(kept.get(name, 0) < units for name, units in reserved.items())
        or after.config.max_instances < before.config.max_instances
    )


def _waits(state: LeaseState) -> dict[str, int]:
    """Who may use what now, and until when at most. Owners that are not known yet: until the learning time ends."""
    waits: dict[str, int] = {}
    for lease in (*state.partitions.values(), *state.slots.values()):
        if lease.owner is not None:
            waits[lease.owner] = max(waits.get(lease.owner, 0), lease.expires_ms)
    if state.now_ms < state.learn_until_ms:
        waits[""] = state.learn_until_ms
    return waits
