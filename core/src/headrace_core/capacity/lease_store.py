"""The store's side of the lease protocol: one atomic step a call (capacity.md 13, "Store").

    never granted --grant--> owned --released--> quarantine --free_at--> free --grant (higher epoch)--> owned ...
                               '----expired------^   '--grant to the same owner, which has its own ledger

`sync` is a function of state, request and the store's clock; whoever keeps the state makes it atomic. What can never
happen: two owners of one partition; a partition for a new owner before the quarantine after the last possible dispatch
of the old one; an epoch that repeats or falls.

A store that lost its memory *learns* for ttl + quarantine: it honours what owners claim to hold and grants nothing. A
claim counts only in the call that makes it, as an old message may still be on its way; the higher epoch wins. What was
changed at run time, and a pause that still lasts, it hears of from owners too.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from headrace_core.capacity.config_change import remembered
from headrace_core.capacity.handover import carried_with, passed_on, young
from headrace_core.capacity.lease_state import WHOLE, LeaseState, Owner, Partition
from headrace_core.capacity.protocol import (
    MAX_PARTITIONS,
    Capacity,
    Claim,
    Grant,
    LeaseReply,
    LeaseRequest,
    Spent,
    as_capacity,
    by_dimension,
)
from headrace_core.capacity.shares import Wish, fair_shares, shares
from headrace_core.capacity.worth import worth_of

HANDED_ON_MS = 5_000
"""With more wanting owners than partitions, and with two oversize heads, a turn lasts so long."""

LOOK_MS = 100
"""One who inherits and has less than its share looks so often for what others give back. One that has its share and
wants more looks after so long for each owner that is known: ten such calls a second come to a resource at most."""

REFUSED_SHARE = 0.01
FACTOR_FLOOR, FACTOR_RISE, SECOND_MS = 50, 100, 1_000


def sync(state: LeaseState, request: LeaseRequest, now_ms: int) -> tuple[LeaseState, LeaseReply]:
    """One exchange at `now_ms`, in the order of capacity.md 13. A clock that runs back stands still."""
    exchange = _Exchange(state, max(now_ms, state.now_ms))
    exchange.expire()
    known = exchange.owners.get(request.owner)
    if known is not None and request.seq <= known.seq:
        return state, LeaseReply(stale=True, config_version=state.config_version)
    if request.config is not None:
        exchange = _Exchange(remembered(exchange.state(), request), exchange.now_ms)
    exchange.note(request, known)
    exchange.hear(request)
    exchange.release(request)
    drop, kept = exchange.claim(request)
    share = exchange.shares()[request.owner]
    grants, surplus = exchange.settle(request, share, kept)
    slot = exchange.reserve(request)
    wait_ms = exchange.wait(request, share, len(grants))
    reply = exchange.reply(request, grants, (*drop, *surplus), slot, wait_ms)
    return exchange.state(), reply


def expired(state: LeaseState, now_ms: int) -> LeaseState:
    """The state at `now_ms` if nobody calls; for status and administration."""
    exchange = _Exchange(state, max(now_ms, state.now_ms))
    exchange.expire()
    return exchange.state()


def current_shares(state: LeaseState) -> dict[str, int]:
    """Share by owner at the state's own time."""
    return _Exchange(state, state.now_ms).shares()


class _Exchange:
    """One step. It works on copies; `state()` is the next state."""

    def __init__(self, state: LeaseState, now_ms: int) -> None:
        self.before, self.now_ms, self.config = state, now_ms, state.config
        self.partitions, self.owners, self.slots = dict(state.partitions), dict(state.owners), dict(state.slots)
        self.last_epoch, self.turns = state.last_epoch, state.turns
        self.pause_until_ms, self.decreases = state.pause_until_ms, state.decreases
        self.factor, self.cut_ms, self.quiet_since_ms = state.factor, state.cut_ms, state.quiet_since_ms
        self.effective = state.effective(now_ms)
        self.count = self.config.count(self.effective)
        self.learning = now_ms < state.learn_until_ms
        self.inherited = list[Spent]()

    def state(self) -> LeaseState:
        return replace(
            self.before,
            now_ms=self.now_ms,
            partitions=self.partitions,
            owners=self.owners,
            slots=self.slots,
            last_epoch=self.last_epoch,
            turns=self.turns,
            pause_until_ms=self.pause_until_ms,
            decreases=self.decreases,
            factor=self.factor,
            cut_ms=self.cut_ms,
            quiet_since_ms=self.quiet_since_ms,
        )

    def expire(self) -> None:
        """Step 1."""
        for leases in (self.partitions, self.slots):
            for index, lease in leases.items():
                if lease.owner is not None and lease.expires_ms <= self.now_ms:
                    leases[index] = lease.freed(lease.expires_ms + self.config.quarantine_ms)
        silent = [name for name, owner in self.owners.items() if owner.seen_ms + self.config.ttl_ms <= self.now_ms]
        for name in silent:
            del self.owners[name]

    def note(self, request: LeaseRequest, known: Owner | None) -> None:
        """What the owner said besides its leases."""
        if known is None:
            self.turns += 1
        said = Owner(
            turn=known.turn if known else self.turns,
            seq=request.seq,
            seen_ms=self.now_ms,
            want=max(0, request.want, request.head),
            weight=max(1, request.weight),
            head=max(0, request.head),
            used=request.used,
            head_since_ms=known.head_since_ms if known else None,
            served_ms=known.served_ms if known else None,
            waits_since_ms=known.waits_since_ms if known else None,
            holds_since_ms=known.holds_since_ms if known else None,
            passed=known.passed if known else False,
        )
        self.owners[request.owner] = said
        if request.pause_ms > 0:
            self.pause_until_ms = max(self.pause_until_ms, self.now_ms + request.pause_ms)
        if self.learning and request.paused_ms > 0:  # at no other time: each exchange would add its own delay to it
            self.pause_until_ms = max(self.pause_until_ms, self.now_ms + request.paused_ms)
        self._adapt(request.throttled)
        self.decreases = tuple(
            replace(each, waits={name: end for name, end in each.waits.items() if name != request.owner})
            if request.config_version >= each.version
            else each
            for each in self.decreases
        )

    def _adapt(self, throttled: float) -> None:
        """The adaptive factor (capacity.md 15), common to all instances. A second inside a pause of the whole resource
        is not a quiet one: nothing was asked of the datastore (vector CAP-109)."""
        if not self.config.adaptive:
            return
        if throttled > REFUSED_SHARE:
            if self.cut_ms is None or self.now_ms - self.cut_ms >= SECOND_MS:
                self.factor, self.cut_ms = max(FACTOR_FLOOR, self.factor // 2), self.now_ms
            self.quiet_since_ms = self.now_ms
            return
        self.quiet_since_ms = max(self.quiet_since_ms, self.pause_until_ms)
        quiet = max(0, self.now_ms - self.quiet_since_ms) // SECOND_MS
        self.factor = min(WHOLE, self.factor + quiet * FACTOR_RISE)
        self.quiet_since_ms += quiet * SECOND_MS

    def hear(self, request: LeaseRequest) -> None:
        """Epochs never fall, also not below what a store without memory hears of (capacity.md 13.6, 16)."""
        heard = max((epoch for _, epoch in (*request.held, *request.released)), default=0)
        if heard > self.last_epoch:
            self.last_epoch = ((heard >> 32) + 1) << 32

    def release(self, request: LeaseRequest) -> None:
        """Step 3, `released`."""
        for claim in map(Claim._make, request.released):
            lease = self.partitions.get(claim.partition)
            if lease is None and self._learnable(claim):
                self._learn(claim, request.owner)
                lease = self.partitions[claim.partition]
            if lease is not None and (lease.owner, lease.epoch) == (request.owner, claim.epoch):
                carried = carried_with(request, claim, lease, self.now_ms) if self._inherits(request) else None
                self.partitions[claim.partition] = lease.freed(self.now_ms + self.config.quarantine_ms, carried)

    def _inherits(self, request: LeaseRequest) -> bool:
        return request.inherits and self.config.handover == "inherit"

    def claim(self, request: LeaseRequest) -> tuple[list[Claim], set[int]]:
        """Step 3, `held`: what to drop as wrong owner or epoch, and which partitions are rightly held."""
        drop, kept = list[Claim](), set[int]()
        for claim in map(Claim._make, request.held):
            lease = self.partitions.get(claim.partition)
            if lease is not None and (lease.owner, lease.epoch) == (request.owner, claim.epoch):
                kept.add(claim.partition)
            elif self._learnable(claim) and (lease is None or claim.epoch > lease.epoch):
                self._learn(claim, request.owner)
                kept.add(claim.partition)
            else:
                drop.append(claim)
        return drop, kept

    def _learnable(self, claim: Claim) -> bool:
        return self.learning and 0 <= claim.partition < MAX_PARTITIONS

    def _learn(self, claim: Claim, owner: str) -> None:
        """Believe a claim after a restart."""
        self.partitions[claim.partition] = Partition(claim.epoch, owner, self.now_ms + self.config.ttl_ms)

    def shares(self) -> dict[str, int]:
        """The shares of all owners, in turn; heads and turns are followed on the way."""
        held = dict.fromkeys(self.owners, 0)
        for index, lease in self.partitions.items():
            if lease.owner in held and index < self.count:
                held[lease.owner] += 1
        self._hand_on(held)
        wishes = [self._wish(name, held[name]) for name in sorted(self.owners, key=lambda n: self.owners[n].turn)]
        fair = fair_shares(self.count, wishes)
        if not self._follow_heads(fair, held):
            return fair
        return shares(self.count, [self._wish(wish.owner, held[wish.owner]) for wish in wishes])

    def _wish(self, name: str, held: int) -> Wish:
        owner = self.owners[name]
        held = 0 if owner.passed else held
        return Wish(name, min(owner.want, self.count), owner.weight, held, owner.head, owner.head_since_ms)

    def _hand_on(self, held: Mapping[str, int]) -> None:
        """More wanting owners than partitions: whoever has held for a turn goes behind those that have nothing."""
        wanting = [name for name, owner in self.owners.items() if owner.want > 0]
        crowded = len(wanting) > self.count
        for name, owner in self.owners.items():
            since = None if not held[name] else self.now_ms if owner.holds_since_ms is None else owner.holds_since_ms
            passed = owner.passed and crowded and held[name] > 0
            if (since, passed) != (owner.holds_since_ms, owner.passed):
                self.owners[name] = replace(owner, holds_since_ms=since, passed=passed)
        if not crowded:
            return
        unowned = self.count - sum(held.values())
        passing = sum(owner.passed for owner in self.owners.values())
        places = sum(not held[name] for name in wanting) - unowned - passing
        ripe = [(owner.holds_since_ms, owner.turn, name) for name, owner in self.owners.items() if self._is_ripe(owner)]
        for _, _, name in sorted(ripe)[: max(0, places)]:
            self.turns += 1
            self.owners[name] = replace(self.owners[name], turn=self.turns, passed=True)

    def _is_ripe(self, owner: Owner) -> bool:
        since = owner.holds_since_ms
        return since is not None and not owner.passed and self.now_ms - since >= HANDED_ON_MS

    def _follow_heads(self, fair: Mapping[str, int], held: Mapping[str, int]) -> bool:
        """Since when each head waits; one served for a turn goes behind the others. True if any is oversize."""
        oversize = {name for name, owner in self.owners.items() if min(owner.head, self.count) > fair[name]}
        for name, owner in self.owners.items():
            since, served = owner.head_since_ms, owner.served_ms
            if name not in oversize:
                since = served = None
            else:
                since = self.now_ms if since is None else since
                enough = held[name] >= min(owner.head, self.count)
                served = (self.now_ms if served is None else served) if enough else None
                if served is not None and self.now_ms - served >= HANDED_ON_MS and len(oversize) > 1:
                    since, served = self.now_ms, None
            waits = owner.waits_since_ms if held[name] < min(owner.head, self.count) else None
            if held[name] < min(owner.head, self.count) and waits is None:
                waits = self.now_ms
            if (since, served, waits) != (owner.head_since_ms, owner.served_ms, owner.waits_since_ms):
                self.owners[name] = replace(owner, head_since_ms=since, served_ms=served, waits_since_ms=waits)
        return self._is_their_turn(oversize)

    def _is_their_turn(self, oversize: set[str]) -> bool:
        """No share is raised while a head that would pass within its fair share has waited longer: a stream of
        oversize operations leaves room for others between two of them (capacity.md 17.5)."""
        longest = min((self.owners[name].head_since_ms or 0 for name in oversize), default=None)
        others = (owner.waits_since_ms for name, owner in self.owners.items() if name not in oversize)
        return longest is not None and all(since is None or since >= longest for since in others)

    def settle(self, request: LeaseRequest, share: int, kept: set[int]) -> tuple[list[Grant], list[Claim]]:
        """Steps 4 to 6: renew up to the share, name the surplus, newest first, and grant what is free."""
        owner = request.owner
        mine = sorted((lease.epoch, index) for index, lease in self.partitions.items() if lease.owner == owner)
        if self.learning:
            mine = [each for each in mine if each[1] in kept]
        existing = [each for each in mine if each[1] < self.count]
        renewed = existing[:share]
        surplus = [Claim(index, epoch) for epoch, index in sorted(set(mine) - set(renewed), reverse=True)]
        granted = [index for _, index in renewed]
        for index in granted:
            lease = self.partitions[index]
            carried = () if index in kept else young(lease.carried, self.now_ms)
            self.partitions[index] = replace(lease, expires_ms=self.now_ms + self.config.ttl_ms, carried=carried)
        if not self.learning and len(granted) < share:
            granted += self._grant(owner, share - len(granted), inherits=self._inherits(request))
        for index in set(granted) - kept:
            self.inherited += passed_on(self.partitions[index], index, owner, self.now_ms)
        if granted and self.owners[owner].holds_since_ms is None:
            self.owners[owner] = replace(self.owners[owner], holds_since_ms=self.now_ms)
        return [self._named(index) for index in granted], surplus

    def _grant(self, owner: str, wanted: int, *, inherits: bool) -> list[int]:
        """Step 6: free partitions, lowest index first, each with a higher epoch. What one carries stays with it while
        it is young: this reply may be lost."""
        never, now_ms = Partition(0, None), self.now_ms
        free = (i for i in range(self.count) if self.partitions.get(i, never).open_to(owner, now_ms, inherits=inherits))
        granted = [index for index, _ in zip(free, range(wanted), strict=False)]
        for index in granted:
            self.last_epoch += 1
            carried = young(self.partitions.get(index, never).carried, now_ms)
            self.partitions[index] = Partition(self.last_epoch, owner, now_ms + self.config.ttl_ms, carried=carried)
        return granted

    def _named(self, index: int) -> Grant:
        return Grant(index, self.partitions[index].epoch, worth_of(self.config, self.effective, index))

    def reserve(self, request: LeaseRequest) -> int | None:
        """Reserve slots are leased as partitions are (capacity.md 13, "Reserves")."""
        mine = next((index for index, slot in self.slots.items() if slot.owner == request.owner), None)
        if not request.reserve:
            if mine is not None:
                self.slots[mine] = self.slots[mine].freed(self.now_ms + self.config.quarantine_ms)
            return None
        if self.learning and not request.reserve_held:
            return None
        if mine is None:
            never = Partition(0, None)
            open_slots = (i for i in range(self.config.max_instances) if self._slot_is_open(i, never, request.owner))
            mine = next(open_slots, None)
        if mine is None or mine >= self.config.max_instances:
            return None
        self.slots[mine] = Partition(0, request.owner, self.now_ms + self.config.ttl_ms)
        return mine

    def _slot_is_open(self, index: int, never: Partition, owner: str) -> bool:
        return self.slots.get(index, never).open_to(owner, self.now_ms)

    def wait(self, request: LeaseRequest, share: int, granted: int) -> int:
        """When a call would be granted more: the end of the learning time or of the next quarantine; 0 = unknown. One
        who inherits may be granted more as soon as another gives back."""
        missing = share - granted
        if missing > 0 and self.learning:
            return self.before.learn_until_ms - self.now_ms
        if self._inherits(request):
            wants_more = granted < min(request.want, self.count)
            return LOOK_MS if missing > 0 else LOOK_MS * len(self.owners) if wants_more else 0
        ends = [p.free_at_ms for i, p in self.partitions.items() if p.owner is None and i < self.count]
        return min((end - self.now_ms for end in ends if end > self.now_ms), default=0) if missing > 0 else 0

    def reply(
        self, request: LeaseRequest, grants: list[Grant], drop: tuple[Claim, ...], slot: int | None, wait_ms: int
    ) -> LeaseReply:
        config, version = self.config, self.before.config_version
        return LeaseReply(
            grants=tuple(grants),
            drop=drop,
            ttl_ms=config.ttl_ms,
            reserve_slot=slot,
            shared_capacity=as_capacity(self.effective),
            reserved_capacity=config.reserved_capacity,
            max_capacity=max_capacity(config.shared_capacity, config.reserved_capacity),
            pause_ms=max(0, self.pause_until_ms - self.now_ms),
            factor=self.factor,
            next_sync_ms=wait_ms,
            inherited=tuple(self.inherited),
            config_version=version,
            config=config if request.config_version != version else None,
        )


def max_capacity(shared: Capacity, reserved: Capacity) -> Capacity:
    """The most that one instance could ever be given."""
    extra = by_dimension(reserved)
    everywhere = reserved if isinstance(reserved, int) else 0
    return as_capacity({name: n + extra.get(name, everywhere) for name, n in by_dimension(shared).items()})
