"""Resources: how much this instance may use now (capacity.md 12).

`ProvisionedResource` is fixed and for this process alone. `SharedResource` holds a reserve and partitions, each until
a local deadline: at the deadline nothing of it counts any more. `agent.py` moves partitions in and out of it.

The engine asks a resource for `held_units`, `max_units` and `factor` (adaptive, in thousandths), and tells it what is
wanted. Times are milliseconds of the caller's monotonic clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.errors import (
    CapacityConfig,
    ImproperOrder,
    SharedCapacityNotProvisioned,
    UndefinedLeaseStore,
)
from headrace_core.capacity.events import EventLog
from headrace_core.capacity.in_force import InForce
from headrace_core.capacity.pacing import Pacer
from headrace_core.capacity.protocol import LeaseStore, ResourceConfig, TellsEvents
from headrace_core.capacity.shared_config import SharedConfig, partition_count, partition_worth, partitions_for
from headrace_core.capacity.units import Amount, Units, add, amount, exceeds, is_zero, units

WHOLE = 1000
"""The adaptive factor 1.0, in thousandths."""


class RateLimiter(Protocol):
    """What users may ask a resource, in units per second; `head`: units of the operation at the head."""

    @property
    def capacity(self) -> int | dict[str, int]: ...
    @property
    def max_capacity(self) -> int | dict[str, int]: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def request(self, cost: Amount, head: Amount = 0) -> None: ...
    def throttled(self, share: float) -> None: ...


class Resource(ABC):
    """Base of both. Events wait in `log` until they are taken."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.factor = WHOLE
        self.used_units: Units = {}
        self.throttled_share = 0.0
        self.started = False
        self.pause_until_ms: int | None = None
        self.pause_wanted_until_ms: int | None = None
        self.pacer: Pacer | None = None
        """The books of what this instance spent; set by the batcher at its start."""

    @property
    @abstractmethod
    def held_units(self) -> dict[str, int]:
        """Capacity held, units per second by dimension."""

    @property
    @abstractmethod
    def max_units(self) -> dict[str, int]:
        """The most that could ever be held, by dimension."""

    @property
    def capacity(self) -> int | dict[str, int]:
        """Capacity held, units per second."""
        return amount(self.held_units)

    @property
    def max_capacity(self) -> int | dict[str, int]:
        """The most that could ever be held, units per second."""
        return amount(self.max_units)

    def start(self, now_ms: int = 0) -> None:  # noqa: ARG002
        """Begin; a second call does nothing."""
        if not self.started:
            self.started = True
            self.log.emit("capacity", self.capacity)

    def stop(self, now_ms: int = 0) -> None:
        """Give everything back; event `shutdown`."""
        self.give_back(now_ms)
        if self.started:
            self.started = False
            self.log.emit("shutdown")

    @abstractmethod
    def request(self, cost: Amount, head: Amount = 0) -> None:
        """Say what is wanted: units per second, and the units of the operation at the head."""

    def throttled(self, share: float) -> None:
        """Share of refused or timed-out requests of the last second, 0 to 1, for the adaptive factor."""
        self.throttled_share = max(0.0, min(1.0, share))

    def pause(self, until_ms: int) -> None:
        """Ask that every instance pauses; a fixed resource has only this one."""
        self.pause_wanted_until_ms = max(self.pause_wanted_until_ms or until_ms, until_ms)

    def take_pause(self) -> int | None:
        """End of a pause that the store asked for, once."""
        until, self.pause_until_ms = self.pause_until_ms, None
        return until

    def expire(self, now_ms: int) -> None:  # noqa: B027 - a fixed resource holds nothing that ends
        """Let go of what ends at `now_ms` or before."""

    def next_deadline_ms(self) -> int | None:
        return None

    def give_back(self, now_ms: int) -> None:  # noqa: B027 - a fixed resource has nothing to give back
        """The batcher has stopped: want nothing, use nothing."""

    def set_shared_capacity(self, capacity: Amount) -> InForce:  # noqa: ARG002
        raise SharedCapacityNotProvisioned("a fixed resource has no shared capacity")

    def set_reserved_capacity(self, capacity: Amount) -> InForce:  # noqa: ARG002
        raise SharedCapacityNotProvisioned("a fixed resource has no reserve")


class ProvisionedResource(Resource):
    """Capacity held = max capacity = `capacity` units per second, from construction on."""

    def __init__(self, capacity: Amount) -> None:
        super().__init__()
        self._capacity = units(capacity, "capacity")

    @property
    def held_units(self) -> dict[str, int]:
        return self._capacity

    @property
    def max_units(self) -> dict[str, int]:
        return self._capacity

    def set_capacity(self, capacity: Amount) -> None:
        """Change it at run time. Raises CapacityConfig if the dimensions differ."""
        changed = units(capacity, "capacity")
        if changed.keys() != self._capacity.keys():
            raise CapacityConfig("capacity", "the dimensions are fixed")
        self._capacity = changed
        self.log.emit("capacity", self.capacity)

    def request(self, cost: Amount, head: Amount = 0) -> None:  # noqa: ARG002
        self.log.emit("target", cost if isinstance(cost, int) else dict(cost))


@dataclass(slots=True)
class Held:
    partition: int
    epoch: int
    worth: dict[str, int]
    deadline_ms: int | None = field(default=None)


class SharedResource(Resource):
    """The client's side of a shared capacity. `store` provisions it; `lease_reserve` False: the reserve is set aside
    outside the leases and held from the start. Not safe for threads but for the `set_` calls, which take `guard`."""

    def __init__(
        self, store: LeaseStore | None, *, lease: LeaseConfig | None = None, lease_reserve: bool = True, **config: Any
    ) -> None:
        super().__init__()
        if store is None:
            raise UndefinedLeaseStore("a shared resource needs a lease store")
        self.config = SharedConfig(**config)
        if lease_reserve and self.config.max_instances is None and not is_zero(self.config.reserve_units):
            raise CapacityConfig("max_instances", "must be given when a reserve is set")
        self.store = store
        self.lease = lease or LeaseConfig()
        self.guard: AbstractContextManager[Any] = nullcontext()
        self._shared = self._effective = self.config.shared_units
        self._reserve = self.config.reserve_units
        self._lease_reserve = lease_reserve
        self._reserve_until_ms: int | None = None
        self._denied = False
        self._held: list[Held] = []
        self._reported: dict[str, int] | None = None
        self._need: Units = {}
        self._head: Units = {}
        self._ending = False
        self.safe = False
        self.wanted = 0
        self.head_partitions = 0

    @property
    def max_units(self) -> dict[str, int]:
        return {name: value + self._reserve.get(name, 0) for name, value in self._shared.items()}

    @property
    def held_units(self) -> dict[str, int]:
        total = dict.fromkeys(self._shared, 0)
        for name in total:
            total[name] += self._reserve.get(name, 0) if self.has_reserve else 0
            total[name] += sum(held.worth.get(name, 0) for held in self._held)
            total[name] = max(total[name], self.config.safe_capacity) if self.safe else total[name]
        return total

    @property
    def shared_units(self) -> dict[str, int]:
        """The configured shared capacity."""
        return self._shared

    @property
    def reserve_units(self) -> dict[str, int]:
        """The reserve of each instance, leased or not."""
        return self._reserve

    @property
    def partitions(self) -> int:
        return partition_count(self.config, self._shared)

    @property
    def has_reserve(self) -> bool:
        if not self._lease_reserve:
            return self.started
        return self._reserve_until_ms is not None

    @property
    def wants_reserve(self) -> bool:
        return self._lease_reserve and not self._ending and not is_zero(self._reserve)

    def held(self) -> list[tuple[int, int, int | dict[str, int], int | None]]:
        """(partition, epoch, worth in units per second, local deadline in ms), oldest first."""
        return [(h.partition, h.epoch, amount(h.worth), h.deadline_ms) for h in self._held]

    def start(self, now_ms: int = 0) -> None:  # noqa: ARG002
        """Create what the store needs; a second call does nothing. Raises PartitionsOutOfRange."""
        if self.started:
            return
        count = partition_count(self.config, self._shared)
        self.log.emit("provision-start", count)
        if isinstance(self.store, TellsEvents):
            self.store.tell(self.log.emit)
        self.store.provision(self.config.for_store(self.lease))
        self.log.emit("provision-done", count)
        self.started = True
        self.report_capacity(always=True)

    def request(self, cost: Amount, head: Amount = 0) -> None:
        """Units per second wanted, and of the operation that waits at the head. Takes effect at the next exchange."""
        cost_units, head_units = units(cost, "cost"), units(head, "head")
        reserve: Units = {} if self._denied else self._reserve  # an instance without a slot has no reserve
        above = {name: max(0, value - reserve.get(name, 0)) for name, value in cost_units.items()}
        head_above = {name: max(0, value - reserve.get(name, 0)) for name, value in head_units.items()}
        self._need = {n: max(above.get(n, 0), head_above.get(n, 0)) for n in above.keys() | head_above.keys()}
        self._head = head_above
        self._count_wanted()
        self.log.emit("target", amount(above), partitions=self.wanted)

    def release_surplus(self) -> list[tuple[int, int]]:
        """Stop using what is above the need: first what is worth nothing, then the newest (capacity.md 12)."""
        released = []
        while len(self._held) > self.wanted:
            index = max(range(len(self._held)), key=lambda i: (is_zero(self._held[i].worth), i))
            released.append(self._let_go(index))
        self.report_capacity()
        return released

    def accept(self, grants: Iterable[tuple[int, int, Amount]], deadline_ms: int | None) -> None:
        """Hold or renew (partition, epoch, worth) until `deadline_ms` (None: no end)."""
        by_index = {held.partition: held for held in self._held}
        for partition, epoch, worth in grants:
            held = by_index.get(partition)
            if held is None:
                held = Held(partition, epoch, {})
                self._held.append(held)
                self.log.emit("allocated", partition)
            held.epoch, held.worth, held.deadline_ms = epoch, units(worth, "worth"), deadline_ms

    def hold_reserve(self, until_ms: int | None) -> None:
        """The reserve slot is leased until then; None: denied. Then all that is needed is wanted in partitions."""
        self._denied = until_ms is None and self.wants_reserve
        if until_ms is None and self.wants_reserve and self._reserve_until_ms is None:
            self.log.emit("reserve-denied")
        self._reserve_until_ms = until_ms

    def drop(self, dropped: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Stop using these at once; returns those that were held with that epoch."""
        asked = set(dropped)
        indexes = [i for i, h in enumerate(self._held) if (h.partition, h.epoch) in asked]
        return [self._let_go(i) for i in reversed(indexes)]

    def expire(self, now_ms: int) -> None:
        """At its deadline a partition counts no more, in the same millisecond (capacity.md 13 rule 5)."""
        for index in reversed(range(len(self._held))):
            deadline_ms = self._held[index].deadline_ms
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._let_go(index)
        if self._reserve_until_ms is not None and self._reserve_until_ms <= now_ms:
            self._reserve_until_ms = None
        self.report_capacity()

    def next_deadline_ms(self) -> int | None:
        deadlines = [h.deadline_ms for h in self._held if h.deadline_ms is not None]
        if self._reserve_until_ms is not None:
            deadlines.append(self._reserve_until_ms)
        return min(deadlines, default=None)

    def give_back(self, now_ms: int) -> None:  # noqa: ARG002
        self._ending = True
        self.wanted = self.head_partitions = 0
        self._need = self._head = {}

    def learn(self, effective: Units, most: Units | None = None) -> None:
        """What the store says: the shared capacity in force, and the most there could be (reserve included).

        They differ while a ramp climbs. Raises PartitionsOutOfRange and changes nothing if there are too many.
        """
        shared = effective if most is None else {n: v - self._reserve.get(n, 0) for n, v in most.items()}
        partition_count(self.config, shared)
        self._shared, self._effective = dict(shared), dict(effective)
        for held in self._held:
            held.worth = partition_worth(self.config, effective, held.partition)
        self._count_wanted()

    def cut_as(self, known: ResourceConfig) -> None:
        """Partitions are what the store says, whatever is configured here: all owners mean the same by one. Raises
        `CapacityConfig` where one of the two has several dimensions and the other has not; then nothing changed."""
        if (known.factor, known.partitions) != (self.config.factor, self.config.partitions):
            self.config = replace(self.config, factor=known.factor, partitions=known.partitions)

    def learn_reserve(self, reserve: Units) -> None:
        """The reserve of each instance, as the store knows it."""
        self._reserve = {name: reserve.get(name, 0) for name in self._shared}

    def set_shared_capacity(self, capacity: Amount) -> InForce:
        """New shared capacity, through the store; where there is a ramp, what is above the capacity of now comes with
        the store's replies. Raises PartitionsOutOfRange, CapacityConfig, ImproperOrder before start, and what the store
        raises; then nothing changed."""
        shared = self._same_dimensions("shared_capacity", capacity)
        self.config.check_total(shared, self._reserve)
        count = partition_count(self.config, shared)
        self.log.emit("provision-start", count)
        version = self.store.configure(self.config.name, shared_capacity=amount(shared))
        with self.guard:
            self.log.emit("provision-done", count)
            self.learn(self._at_once(shared), {name: n + self._reserve.get(name, 0) for name, n in shared.items()})
            self.report_capacity(always=True)
        return InForce(self.store, self.config.name, version)

    def set_reserved_capacity(self, capacity: Amount) -> InForce:
        """New reserve of every instance, as `set_shared_capacity`."""
        reserve = self._same_dimensions("reserved_capacity", capacity)
        self.config.check_total(self._shared, reserve)
        version = self.store.configure(self.config.name, reserved_capacity=amount(reserve))
        with self.guard:
            self._reserve = reserve
            self.report_capacity(always=True)
        return InForce(self.store, self.config.name, version)

    def _at_once(self, shared: Units) -> Units:
        """What of a new shared capacity is effective before the store says so (capacity.md 15)."""
        if self.config.ramp is None:
            return shared
        return {name: min(n, self._effective[name]) for name, n in shared.items()}

    def _same_dimensions(self, field: str, capacity: Amount) -> dict[str, int]:
        if not self.started:
            raise ImproperOrder("the resource is not started")
        changed = units(capacity, field)
        if changed.keys() != self._shared.keys():
            raise CapacityConfig(field, "the dimensions are fixed")
        return changed

    def worth(self, partition: int) -> dict[str, int]:
        """Units per second of a partition, by the capacity in force."""
        return partition_worth(self.config, self._effective, partition)

    def _count_wanted(self) -> None:
        """Partitions wanted in all, and for the head alone (capacity.md 12, 13)."""
        self.head_partitions = self._partitions_for_head()
        self.wanted = max(partitions_for(self.config, self._shared, self._need), self.head_partitions)

    def _partitions_for_head(self) -> int:
        """Partitions are not all worth the same. Where those that would stay are too little, one more is needed: an
        operation that fits must not wait for ever."""
        needed = partitions_for(self.config, self._shared, self._head)
        if not needed:
            return 0
        worth = dict.fromkeys(self._head, 0)
        for count, held in enumerate(self._held, start=1):
            add(worth, held.worth)
            if count >= needed and not exceeds(self._head, worth):
                return count
        return min(max(needed, len(self._held) + 1), self.partitions)

    def report_capacity(self, *, always: bool = False) -> None:
        """Event `capacity`, if it changed since the last one."""
        held = self.held_units
        if always or held != self._reported:
            self._reported = held
            self.log.emit("capacity", amount(held))

    def _let_go(self, index: int) -> tuple[int, int]:
        held = self._held.pop(index)
        self.log.emit("released", held.partition)
        return held.partition, held.epoch
