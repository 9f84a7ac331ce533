"""What a lease store remembers of one resource, as values: the next state is built from the last, never written into.

All of it can be encoded with msgspec, so that a durable store keeps it as one value in one transaction. Times are
milliseconds of the store's own clock; `free_at_ms` is the end of the quarantine.
"""

from __future__ import annotations

import msgspec

from headrace_core.capacity.protocol import ResourceConfig, by_dimension
from headrace_core.capacity.ramp import Ramp, steady

WHOLE = 1_000
"""The adaptive factor 1.0, in thousandths."""


class Carried(msgspec.Struct, frozen=True):
    """Cost units of the ledger of `owner` that go with a partition (`handover.py`)."""

    at_ms: int
    cost: int | dict[str, int]
    owner: str


class Partition(msgspec.Struct, frozen=True):
    """Owned until `expires_ms`, or free for others from `free_at_ms`. One that is not listed was never granted.

    `handed`: its last owner gave it back with its ledger, so that one who inherits need not wait.
    """

    epoch: int
    owner: str | None
    expires_ms: int = 0
    free_at_ms: int = 0
    last_owner: str | None = None
    handed: bool = False
    carried: tuple[Carried, ...] = ()

    def freed(self, free_at_ms: int, carried: tuple[Carried, ...] | None = None) -> Partition:
        """Without an owner. `carried` None: nothing is handed over."""
        return Partition(self.epoch, None, 0, free_at_ms, self.owner, carried is not None, carried or ())

    def open_to(self, owner: str, now_ms: int, *, inherits: bool = False) -> bool:
        """Out of quarantine, or last held by this same owner, which still has its own ledger, or handed over."""
        return self.owner is None and (
            self.free_at_ms <= now_ms or self.last_owner == owner or (inherits and self.handed)
        )


class Owner(msgspec.Struct, frozen=True):
    """What an owner last said. `turn`: rank among equals, first seen first, until it hands a partition on (`passed`).

    `head_since_ms`: since when its head needs more than its fair share; `served_ms`: since when it holds that much.
    `waits_since_ms`: since when it holds less than its head needs. `holds_since_ms`: since when it has held something.
    """

    turn: int
    seq: int
    seen_ms: int
    want: int
    weight: int
    head: int
    used: int | dict[str, int] = 0
    head_since_ms: int | None = None
    served_ms: int | None = None
    waits_since_ms: int | None = None
    holds_since_ms: int | None = None
    passed: bool = False


class Decrease(msgspec.Struct, frozen=True):
    """A decrease that is not in force yet: owner -> when its leases of that moment end, if it confirms nothing."""

    version: int
    waits: dict[str, int]


class LeaseState(msgspec.Struct, frozen=True):
    """One resource. `last_epoch`: the highest given or heard of. `learn_until_ms`: until then no new grants.

    `told`: the configuration is what an owner remembered of it (`config_change.py`).
    """

    config: ResourceConfig
    now_ms: int
    last_epoch: int
    learn_until_ms: int
    ramps: dict[str, Ramp]
    config_version: int = 1
    told: bool = False
    partitions: dict[int, Partition] = {}
    owners: dict[str, Owner] = {}
    slots: dict[int, Partition] = {}
    turns: int = 0
    pause_until_ms: int = 0
    factor: int = WHOLE
    cut_ms: int | None = None
    quiet_since_ms: int = 0
    decreases: tuple[Decrease, ...] = ()

    def effective(self, now_ms: int) -> dict[str, int]:
        """Shared capacity by dimension, after the ramp."""
        return {name: ramp.effective(self.config.ramp, now_ms) for name, ramp in self.ramps.items()}


def new_state(config: ResourceConfig, now_ms: int, *, generation: int, learning: bool = False) -> LeaseState:
    """A store without memory. `generation` must be above every one of before, such as the wall clock's second.

    `learning`: owners may hold partitions from before; for ttl + quarantine only their claims are honoured.
    """
    return LeaseState(
        config=config,
        now_ms=now_ms,
        last_epoch=generation << 32,
        learn_until_ms=now_ms + config.ttl_ms + config.quarantine_ms if learning else now_ms,
        ramps={name: steady(units, now_ms) for name, units in by_dimension(config.shared_capacity).items()},
        quiet_since_ms=now_ms,
    )
