"""The owner's side of the lease protocol (capacity.md 13, "Owner"): when to call, what to say, what to believe.

One call is in flight at a time. Everything granted ends at *time of sending* + ttl - margin on the local monotonic
clock; a reply that comes after that is not used, and its grants are given back. What is named in `released` is no
longer used, and is named again until a reply confirms a call that named it. A reply to any but the latest call is
ignored. The agent never hopes: without replies, deadlines pass and the capacity falls to `safe_capacity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_core.capacity.config import LeaseConfig
from headrace_core.capacity.handover import hand_over, take_over
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.protocol import Claim, LeaseReply, LeaseRequest, ResourceConfig, Spent, differences
from headrace_core.capacity.resources import SharedResource
from headrace_core.capacity.units import amount, units


def local_deadline_ms(sent_ms: int, ttl_ms: int, margin_ms: int) -> int:
    """When the owner stops, counted from the send (rule 2)."""
    return sent_ms + ttl_ms - margin_ms


def others_may_hold_from_ms(granted_ms: int, lease: LeaseConfig) -> int:
    """When a store may grant the partition to another, on its own clock, if this owner never calls again."""
    return granted_ms + lease.ttl_ms + lease.quarantine_ms


class LeaseAgent:
    """Keeps `resource` supplied. `owner` is `host:pid:uuid4`, new for every process start."""

    def __init__(self, resource: SharedResource, owner: str) -> None:
        self._resource = resource
        self._lease = resource.lease
        self._owner = owner
        self._seq = 0
        self._in_flight: int | None = None
        self._sent_ms: int | None = None
        self._named_ms: int | None = None
        self._asked: tuple[int, int] = (0, 0)
        self._released: dict[tuple[int, int], int | None] = {}
        self._asked_pause_ms: int | None = None
        self._told_throttled = 0.0
        self._pause_until_ms = 0
        self._config_version: int | None = None
        self._config: ResourceConfig | None = None
        self._effective: Any = None
        self._lost = False
        self._safe_from_ms: int | None = None

    @property
    def in_flight(self) -> bool:
        return self._in_flight is not None

    def next_call_ms(self, now_ms: int) -> int | None:
        """When to call next; None while a call is in flight (rule 1)."""
        if self._in_flight is not None:
            return None
        if self._sent_ms is None:
            return now_ms
        earliest = self._sent_ms + self._lease.min_sync_interval_ms
        if not self._lost and self._is_urgent():
            return earliest
        regular = self._sent_ms + self._lease.renew_interval_ms
        if self._named_ms is not None:
            regular = min(regular, self._named_ms)
        return max(earliest, regular)

    def begin(self, now_ms: int) -> LeaseRequest:
        """The request to send now. What it names in `released` is no longer in use."""
        assert self._in_flight is None, "one call in flight"
        resource = self._resource
        resource.expire(now_ms)
        if self._safe_from_ms is None:
            self._safe_from_ms = local_deadline_ms(now_ms, self._lease.ttl_ms, self._lease.margin_ms)
        self._seq += 1
        self._in_flight, self._sent_ms, self._named_ms = self._seq, now_ms, None
        for pair in resource.release_surplus():
            self._released[pair] = None
        for pair, first in self._released.items():
            self._released[pair] = self._seq if first is None else first
        spent = self._hand_over(now_ms) if resource.config.handover == "inherit" else ()
        self._asked = self._need()
        self._told_throttled, resource.throttled_share = resource.throttled_share, 0.0
        self._asked_pause_ms = resource.pause_wanted_until_ms
        self._pause_until_ms = max(self._pause_until_ms, self._asked_pause_ms or 0)
        return LeaseRequest(
            resource=resource.config.name,
            owner=self._owner,
            seq=self._seq,
            want=resource.wanted,
            weight=resource.config.weight,
            head=resource.head_partitions,
            held=tuple(Claim(partition, epoch) for partition, epoch, _, _ in resource.held()),
            released=tuple(Claim(*pair) for pair in self._released),
            reserve=resource.wants_reserve,
            reserve_held=resource.wants_reserve and resource.has_reserve,
            used=amount(resource.used_units),
            pause_ms=max(0, (self._asked_pause_ms or 0) - now_ms),
            throttled=self._told_throttled,
            config_version=self._config_version or 0,
            config=self._config,
            paused_ms=max(0, self._pause_until_ms - now_ms),
            inherits=resource.config.handover == "inherit",
            spent=spent,
        )

    def failed(self, seq: int, now_ms: int) -> None:
        """The call was not answered in time; the next one has a new number."""
        if seq != self._in_flight:
            return
        self._in_flight = None
        self._resource.throttled_share = max(self._resource.throttled_share, self._told_throttled)
        if not self._lost:
            self._lost = True
            self._resource.log.emit("store-lost")
        self.follow_time(now_ms)

    def receive(self, seq: int, reply: LeaseReply, now_ms: int, denied: Sequence[int] = ()) -> bool:
        """The reply to call `seq`, at `now_ms`. `denied`: partitions that the store refused. True: it was used."""
        if seq != self._in_flight or self._sent_ms is None:
            return False
        self._in_flight = None
        if reply.stale:
            return False
        self._released = {p: first for p, first in self._released.items() if first is None or first > seq}
        deadline_ms = local_deadline_ms(self._sent_ms, reply.ttl_ms, self._lease.margin_ms)
        if now_ms >= deadline_ms:
            self._give_back_late(reply)
            return False
        self._found(deadline_ms)
        self._settle_asked()
        self._learn(reply)
        dropped = [(partition, epoch) for partition, epoch in reply.drop]
        self._resource.drop(dropped)
        for pair in dropped:  # also what only a lost reply granted: nobody uses it, and the store waits for the word
            self._released[pair] = None
        self._take_over(reply, now_ms)
        self._resource.accept(reply.grants, deadline_ms)
        self._resource.hold_reserve(None if reply.reserve_slot is None else deadline_ms)
        self._follow_pause(reply, now_ms)
        self._report_short(denied)
        self._resource.report_capacity()
        if reply.next_sync_ms:
            self._named_ms = now_ms + reply.next_sync_ms
        return True

    def follow_time(self, now_ms: int) -> None:
        """Deadlines, and the safe capacity once the store was lost for so long (rule 5)."""
        safe = self._lost and self._safe_from_ms is not None and now_ms >= self._safe_from_ms
        if safe != self._resource.safe:
            self._resource.safe = safe
        self._resource.expire(now_ms)

    def next_time_ms(self) -> int | None:
        """When `follow_time` has something to do besides lease deadlines."""
        return self._safe_from_ms if self._lost and not self._resource.safe else None

    def _need(self) -> tuple[int, int]:
        return self._resource.wanted, self._resource.head_partitions

    def _is_urgent(self) -> bool:
        """The need left what is held, something dropped is unconfirmed and unnamed, or a pause waits."""
        changed = self._need() != self._asked
        moved = self._resource.wanted != len(self._resource.held()) or self._need()[1] != self._asked[1]
        unnamed = any(first is None for first in self._released.values())
        return (changed and moved) or unnamed or self._resource.pause_wanted_until_ms is not None

    def _hand_over(self, now_ms: int) -> tuple[Spent, ...]:
        """What goes with all that is given back: what was spent above what is still held (`handover.py`). The newest
        entries go with what is named for the first time: the store may have taken an earlier call, whose reply was
        lost, and then takes nothing more for the partitions that it named."""
        resource = self._resource
        if resource.pacer is None or not self._released:
            return ()
        newest = resource.pacer.newest(now_ms * NS_PER_MS, resource.held_units)
        latest = sorted(self._released.items(), key=lambda named: -(named[1] or 0))
        return hand_over(newest, [(partition, resource.worth(partition)) for (partition, _), _ in latest], now_ms)

    def _take_over(self, reply: LeaseReply, now_ms: int) -> None:
        """Before the partitions count: what their old owners spent is in this ledger."""
        if reply.inherited and self._resource.pacer is not None:
            self._resource.pacer.inherit(take_over(reply.inherited, now_ms))

    def _give_back_late(self, reply: LeaseReply) -> None:
        """A reply after its own deadline (rule 3): all it grants is released, none of it used."""
        self._resource.log.emit("lease-late", len(reply.grants))
        for grant in reply.grants:
            self._released[(grant.partition, grant.epoch)] = None

    def _found(self, deadline_ms: int) -> None:
        self._safe_from_ms = deadline_ms
        self._resource.safe = False
        if self._lost:
            self._lost = False
            self._resource.log.emit("store-back")

    def _settle_asked(self) -> None:
        if self._resource.pause_wanted_until_ms == self._asked_pause_ms:
            self._resource.pause_wanted_until_ms = None

    def _learn(self, reply: LeaseReply) -> None:
        """Capacities, the adaptive factor and the configuration with its version. Raises `CapacityConfig`."""
        resource = self._resource
        self._compare(reply)
        if resource.config.ramp and self._effective not in (None, reply.shared_capacity):
            resource.log.emit("ramp", reply.shared_capacity)
        self._effective = reply.shared_capacity
        resource.learn_reserve(units(reply.reserved_capacity, "reserved_capacity"))
        resource.learn(units(reply.shared_capacity, "shared_capacity"), units(reply.max_capacity, "max_capacity"))
        if resource.factor != reply.factor:
            resource.factor = reply.factor
            resource.log.emit("factor", reply.factor)
        if self._config_version not in (None, reply.config_version):
            resource.report_capacity(always=True)
        self._config_version = reply.config_version
        if reply.config is not None:
            self._config = reply.config if reply.config_version > 1 else None

    def _compare(self, reply: LeaseReply) -> None:
        """What the store has holds for all. Told are the settings in which this owner's differ from those that the
        resource was provisioned with, and a change at run time that the store forgot."""
        resource, known = self._resource, self._config_version
        if reply.config is not None and known is None:
            mine = resource.config.for_store(resource.lease)
            if found := differences(mine, reply.config, changed=reply.config_version > 1):
                resource.log.emit("error", 0, found, error="CapacityConfig")
        elif known is not None and reply.config_version < known:
            lost = f"the lease store forgot configuration {known} of {resource.config.name!r}: set it again"
            resource.log.emit("error", 0, lost, error="CapacityConfig")
        if reply.config is not None:
            resource.cut_as(reply.config)

    def _follow_pause(self, reply: LeaseReply, now_ms: int) -> None:
        """A pause of the whole resource. What is left was measured between the send and now: no news within that, nor
        in the echo of what this owner asked for itself."""
        until_ms = now_ms + reply.pause_ms
        if reply.pause_ms > 0 and (self._sent_ms or 0) + reply.pause_ms > self._pause_until_ms:
            self._resource.pause_until_ms = self._pause_until_ms = until_ms

    def _report_short(self, denied: Sequence[int]) -> None:
        short = self._resource.wanted - len(self._resource.held())
        if short <= 0:
            return
        for partition in denied:
            self._resource.log.emit("failed", partition)
        if not denied:
            self._resource.log.emit("failed", -1, short=short)
