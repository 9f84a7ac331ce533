"""The lease protocol: one call does everything, `store.sync(request) -> reply` (capacity.md 13).

A partition is named with its epoch; epochs only rise, so what an owner says about an older one changes nothing.
Capacities are units per second, one integer or one per dimension; durations are milliseconds; `now_ms` is the store's
own clock. All of it can be encoded with msgspec, for stores behind a wire.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol, get_args, runtime_checkable

import msgspec

from headrace_core.capacity.errors import CapacityConfig, PartitionsOutOfRange

Capacity = int | dict[str, int]
Handover = Literal["wait", "inherit"]
"""How a partition changes its owner: after the quarantine, or with the ledger of the old one (capacity.md 13)."""
MAX_PARTITIONS = 500
WINDOW_MS = 1_000


class Claim(NamedTuple):
    partition: int
    epoch: int


class Grant(NamedTuple):
    """`worth`: units per second of this partition now."""

    partition: int
    epoch: int
    worth: Capacity


class Spent(NamedTuple):
    """Cost units of a ledger that is handed over with a partition, `age_ms` old when the message was made."""

    partition: int
    age_ms: int
    cost: Capacity


class RampSetting(NamedTuple):
    """An increase becomes effective by at most `step` units/s each `per_ms` (capacity.md 15)."""

    step: int
    per_ms: int


class ResourceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a store knows of a resource. `partitions` in place of `factor` with dimensions. Raises `CapacityConfig`."""

    resource: str
    shared_capacity: Capacity
    factor: int = 1
    partitions: int | None = None
    reserved_capacity: Capacity = 0
    max_instances: int = 1
    total_capacity: Capacity | None = None
    ramp: RampSetting | None = None
    adaptive: bool = False
    ttl_ms: int = 5_000
    quarantine_ms: int = WINDOW_MS
    handover: Handover = "wait"

    def __post_init__(self) -> None:
        for name, least in (("factor", 1), ("max_instances", 1), ("ttl_ms", 1), ("quarantine_ms", 0)):
            if getattr(self, name) < least:
                raise CapacityConfig(name, f"must be {least} or more")
        if self.handover not in get_args(Handover):
            raise CapacityConfig("handover", f"must be one of {', '.join(get_args(Handover))}")
        if isinstance(self.shared_capacity, dict) != (self.partitions is not None):
            raise CapacityConfig("partitions", "must be given exactly with several dimensions")
        if self.ramp is not None and min(self.ramp) < 1:
            raise CapacityConfig("ramp", "step and per_ms must be 1 or more")
        for name in ("shared_capacity", "reserved_capacity"):
            if min(by_dimension(getattr(self, name)).values(), default=-1) < 0:
                raise CapacityConfig(name, "must be 0 or more")
        if not 0 <= self.count(by_dimension(self.shared_capacity)) <= MAX_PARTITIONS or self.partitions == 0:
            raise PartitionsOutOfRange("shared_capacity", f"needs more than {MAX_PARTITIONS} partitions, or none")
        self._check_total()

    def count(self, shared: Mapping[str, int]) -> int:
        """Partitions that `shared` units per second are cut into."""
        return self.partitions if self.partitions is not None else -(-shared[""] // self.factor)

    def _check_total(self) -> None:
        if self.total_capacity is not None:
            total, reserved = by_dimension(self.total_capacity), by_dimension(self.reserved_capacity)
            check_total(total, by_dimension(self.shared_capacity), reserved, self.max_instances)


FIXED = ("factor", "partitions", "ttl_ms", "quarantine_ms")
"""What stays as it was provisioned."""
COMMON = ("shared_capacity", "reserved_capacity", "max_instances", "ramp", "adaptive")
"""What all owners should be configured alike, until it is changed at run time."""


def differences(mine: ResourceConfig, known: ResourceConfig, *, changed: bool) -> str:
    """What an owner's configuration has otherwise than the store's, as a sentence; empty if nothing. `changed`: the
    store's was changed at run time, and then only what cannot be so is compared."""
    names = FIXED if changed else COMMON + FIXED
    found = [
        f"{name} is {getattr(known, name)} there and {getattr(mine, name)} here"
        for name in names
        if getattr(mine, name) != getattr(known, name)
    ]
    return f"the lease store's configuration of {known.resource!r} holds: {', '.join(found)}" if found else ""


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an owner (capacity.md 13). `seq` rises with every call, also with a repeated one.

    `held` and `released` may also be plain pairs. `reserve_held`: it has a reserve slot from an earlier reply, which a
    store that lost its memory then honours.
    `config_version`: that of the last reply that was used; it confirms a decrease. `config`: what that reply was of, if
    it was changed at run time, for a store that forgot it; `paused_ms`: what is left of a pause that the owner was told
    of, for the same reason. `inherits`: the owner hands over and
    takes over ledgers; `spent`: what of its ledger goes with the partitions in `released`.
    """

    resource: str
    owner: str
    seq: int
    want: int = 0
    weight: int = 1
    head: int = 0
    held: tuple[Claim, ...] = ()
    released: tuple[Claim, ...] = ()
    reserve: bool = False
    reserve_held: bool = False
    used: Capacity = 0
    pause_ms: int = 0
    throttled: float = 0.0
    config_version: int = 0
    config: ResourceConfig | None = None
    paused_ms: int = 0
    inherits: bool = False
    spent: tuple[Spent, ...] = ()


class LeaseReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `stale`: `seq` was not above the last one; nothing changed and nothing is granted.

    `shared_capacity` is effective now, `max_capacity` the configured shared plus reserved. `factor` in thousandths.
    `config`: the whole configuration, if the owner has another version. `next_sync_ms`: a call after so long would be
    granted more; 0 = nothing named. `inherited`: must be in the owner's
    ledger before it uses the partition.
    """

    grants: tuple[Grant, ...] = ()
    drop: tuple[Claim, ...] = ()
    ttl_ms: int = 0
    reserve_slot: int | None = None
    shared_capacity: Capacity = 0
    reserved_capacity: Capacity = 0
    max_capacity: Capacity = 0
    pause_ms: int = 0
    factor: int = 1_000
    next_sync_ms: int = 0
    config_version: int = 0
    config: ResourceConfig | None = None
    stale: bool = False
    inherited: tuple[Spent, ...] = ()


class OwnerStatus(msgspec.Struct, frozen=True):
    owner: str
    want: int
    share: int
    partitions: int
    granted: Capacity
    used: Capacity
    reserve: bool


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is granted and used, in sum and per owner. `waiting`: partitions wanted above the shares.

    `in_force_version`: every decrease up to this configuration version is in force (capacity.md 13).
    """

    resource: str
    shared_capacity: Capacity
    max_capacity: Capacity
    granted: Capacity
    used: Capacity
    waiting: int
    pause_ms: int
    factor: int
    learning: bool
    config_version: int
    in_force_version: int
    owners: tuple[OwnerStatus, ...]


class LeaseStore(Protocol):
    """The port of all stores. Every method raises `LeaseStoreUnavailable` when the store does not answer in time."""

    def provision(self, resource: ResourceConfig) -> None:
        """Make the resource known; idempotent: what is known stays as it is."""

    def sync(self, request: LeaseRequest, timeout_ms: int) -> LeaseReply:
        """One exchange. Raises `UnknownResource`."""

    def configure(self, resource: str, **changes: object) -> int:
        """Change the configuration at run time; returns its new version. Raises `CapacityConfig`, `UnknownResource`."""

    def status(self, resource: str) -> StoreStatus:
        """Raises `UnknownResource`."""


@runtime_checkable
class TellsEvents(Protocol):
    """A store that has events of its own (capacity.md 10, "blob store")."""

    def tell(self, emit: Callable[[str, int], object]) -> None:
        """Call `emit(name, val)` at each of them from now on."""


def check_total(
    total: Mapping[str, int], shared: Mapping[str, int], reserved: Mapping[str, int], max_instances: int
) -> None:
    """shared + max_instances x reserved <= total (capacity.md 2). Raises `CapacityConfig`."""
    for name, value in shared.items():
        if value + max_instances * reserved.get(name, 0) > total.get(name, 0):
            raise CapacityConfig("total_capacity", "is below shared + max_instances x reserved")


def by_dimension(capacity: Capacity) -> dict[str, int]:
    """A capacity as a mapping; the only dimension of a plain integer has the empty name."""
    return dict(capacity) if isinstance(capacity, dict) else {"": capacity}


def as_capacity(amounts: Mapping[str, int]) -> Capacity:
    """The reverse of `by_dimension`."""
    return amounts[""] if set(amounts) == {""} else dict(amounts)
