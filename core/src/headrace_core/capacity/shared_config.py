"""Settings of a shared resource, and its partitions (capacity.md 2, 12, 15).

Shared capacity is cut into `ceil(shared / factor)` partitions or, with several dimensions, into a given number of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.errors import CapacityConfig, PartitionsOutOfRange, UndefinedSharedCapacity
from headrace_core.capacity.protocol import MAX_PARTITIONS, Handover, RampSetting, ResourceConfig, check_total
from headrace_core.capacity.units import Amount, Units, amount, units
from headrace_core.capacity.worth import even_worth, factor_worth


@dataclass(frozen=True, slots=True)
class SharedConfig:
    """What a store must know of a shared resource. `partitions` is given instead of `factor` with dimensions."""

    name: str = "default"
    shared_capacity: Amount | None = None
    factor: int = 1
    partitions: int | None = None
    reserved_capacity: Amount = 0
    max_instances: int | None = None
    total_capacity: Amount | None = None
    weight: int = 1
    ramp: tuple[int, int] | None = None
    adaptive: bool = False
    safe_capacity: int = 0
    handover: Handover = "wait"

    def __post_init__(self) -> None:
        if self.shared_capacity is None:
            raise UndefinedSharedCapacity("shared_capacity must be given")
        self._check("factor", self.factor, 1)
        self._check("weight", self.weight, 1)
        self._check("max_instances", self.instances, 1)
        self._check("safe_capacity", self.safe_capacity, 0)
        for value in () if self.ramp is None else self.ramp:
            self._check("ramp", value, 1)
        if self.handover not in get_args(Handover):
            raise CapacityConfig("handover", f"must be one of {', '.join(get_args(Handover))}")
        if isinstance(self.shared_capacity, Mapping) != (self.partitions is not None):
            raise CapacityConfig("partitions", "must be given exactly with several dimensions")
        self.check_total(units(self.shared_capacity, "shared_capacity"), self.reserve_units)

    def _check(self, name: str, value: object, least: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise CapacityConfig(name, f"must be an integer of {least} or more")

    @property
    def instances(self) -> int:
        """Reserve slots."""
        return 1 if self.max_instances is None else self.max_instances

    @property
    def shared_units(self) -> dict[str, int]:
        assert self.shared_capacity is not None, "checked at construction"
        return units(self.shared_capacity, "shared_capacity")

    @property
    def reserve_units(self) -> dict[str, int]:
        if self.reserved_capacity == 0:
            return dict.fromkeys(self.shared_units, 0)
        reserve = units(self.reserved_capacity, "reserved_capacity")
        if reserve.keys() != self.shared_units.keys():
            raise CapacityConfig("reserved_capacity", "must have the dimensions of shared_capacity")
        return reserve

    def for_store(self, lease: LeaseConfig) -> ResourceConfig:
        """What the store must know."""
        return ResourceConfig(
            resource=self.name,
            shared_capacity=amount(self.shared_units),
            factor=self.factor,
            partitions=self.partitions,
            reserved_capacity=amount(self.reserve_units),
            max_instances=self.instances,
            total_capacity=None
            if self.total_capacity is None
            else amount(units(self.total_capacity, "total_capacity")),
            ramp=None if self.ramp is None else RampSetting(*self.ramp),
            adaptive=self.adaptive,
            ttl_ms=lease.ttl_ms,
            quarantine_ms=lease.quarantine_ms,
            handover=self.handover,
        )

    def check_total(self, shared: Units, reserved: Units) -> None:
        """shared + max_instances x reserved <= total, where a total is given (capacity.md 2)."""
        if self.total_capacity is not None:
            check_total(units(self.total_capacity, "total_capacity"), shared, reserved, self.instances)


def partition_count(config: SharedConfig, shared: Units) -> int:
    """Raises PartitionsOutOfRange above 500: capacity is never cut silently."""
    if config.partitions is not None:
        count = config.partitions
    else:
        count = max(-(-value // config.factor) for value in shared.values())
    if not 0 <= count <= MAX_PARTITIONS:
        raise PartitionsOutOfRange("shared_capacity", f"{count} partitions; at most {MAX_PARTITIONS}")
    return count


def partition_worth(config: SharedConfig, shared: Units, index: int) -> dict[str, int]:
    """Units per second of partition `index`; the last one is worth the remainder (capacity.md 12, 15)."""
    if config.partitions is None:
        return {name: factor_worth(s, config.factor, index) for name, s in shared.items()}
    return {name: even_worth(s, config.partitions, index) for name, s in shared.items()}


def partitions_for(config: SharedConfig, shared: Units, need: Units) -> int:
    """Partitions wanted for `need` units per second, at most all; the largest of the dimensions decides."""
    count, wanted = partition_count(config, shared), 0
    for name, value in need.items():
        if value <= 0:
            continue
        if config.partitions is None:
            wanted = max(wanted, -(-value // config.factor))
        else:
            s = shared.get(name, 0)
            wanted = max(wanted, -(-value * config.partitions // s) if s else count)
    return min(wanted, count)
