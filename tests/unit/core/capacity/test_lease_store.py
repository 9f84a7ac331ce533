"""The store's rules that the worked examples do not show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from headrace_core.capacity.errors import (
    CapacityConfig,
    LeaseStoreUnavailable,
    PartitionsOutOfRange,
    UnknownResource,
)
from headrace_core.capacity.lease_state import LeaseState
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import (
    Claim,
    LeaseReply,
    LeaseRequest,
    RampSetting,
    ResourceConfig,
)


@dataclass
class World:
    """A store with a clock that the test moves, and owners that hold what they were granted."""

    partitions: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    now_ms: int = 0
    seq: int = 0
    held: dict[str, tuple[Claim, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = MemoryStore(lambda: self.now_ms)
        config = {"resource": "r", "shared_capacity": 100 * self.partitions, "factor": 100, **self.options}
        self.store.provision(ResourceConfig(**config))

    def call(self, owner: str, want: int, at: int, **more: Any) -> LeaseReply:
        self.now_ms, self.seq = at, self.seq + 1
        request = {"seq": self.seq, "held": self.held.get(owner, ()), **more}
        reply = self.store.sync(LeaseRequest(resource="r", owner=owner, want=want, **request))
        if not reply.stale:
            self.held[owner] = tuple(Claim(g.partition, g.epoch) for g in reply.grants)
        return reply

    def give_back(self, owner: str, want: int, at: int, **more: Any) -> LeaseReply:
        released, self.held[owner] = self.held[owner], ()
        return self.call(owner, want, at, released=released, **more)


def indexes(reply: LeaseReply) -> list[int]:
    return [grant.partition for grant in reply.grants]


def test_a_call_with_an_old_number_is_stale_and_changes_nothing() -> None:
    world = World()
    world.call("A", 2, at=0, seq=5)
    before = world.store.state("r")
    reply = world.call("A", 4, at=100, seq=5, pause_ms=9_000)
    assert (reply.stale, reply.grants, reply.drop) == (True, (), ())
    assert world.store.state("r") == before


def test_a_lost_reply_is_granted_again_under_the_same_epoch() -> None:
    world = World()
    first = world.call("A", 2, at=0)
    again = world.call("A", 2, at=100, held=())
    assert again.grants == first.grants


def test_free_partitions_are_granted_lowest_index_first_and_dropped_newest_first() -> None:
    world = World()
    assert indexes(world.call("A", 3, at=0)) == [0, 1, 2]
    reply = world.call("A", 1, at=100)
    assert ([claim.partition for claim in reply.drop], indexes(reply)) == ([2, 1], [0])


def test_the_same_owner_gets_its_partition_back_inside_the_quarantine_under_a_higher_epoch() -> None:
    world = World(partitions=1)
    first = world.call("A", 1, at=0).grants[0]
    world.give_back("A", 0, at=100)
    assert world.call("B", 1, at=200).grants == ()
    world.call("B", 0, at=300)
    again = world.call("A", 1, at=400).grants[0]
    assert again.epoch > first.epoch


def test_the_store_names_the_end_of_the_quarantine_for_the_next_call() -> None:
    world = World(partitions=1)
    world.call("A", 1, at=0)
    world.give_back("A", 0, at=100)
    assert world.call("B", 1, at=300).next_sync_ms == 800
    reply = world.call("B", 1, at=1_100)
    assert (indexes(reply), reply.next_sync_ms) == ([0], 0)


def test_a_dropped_partition_that_is_not_given_back_is_not_renewed_and_expires() -> None:
    world = World(partitions=2)
    world.call("A", 2, at=0)
    world.call("B", 2, at=1_000)
    told = world.call("A", 2, at=2_000)
    assert [claim.partition for claim in told.drop] == [1]
    assert world.call("B", 2, at=5_999).grants == ()
    assert indexes(world.call("B", 2, at=6_000)) == [1], "0 + ttl + quarantine"


def test_more_wanting_owners_than_partitions_hand_them_on_after_five_seconds() -> None:
    world = World(partitions=2)
    empty_since = dict.fromkeys("ABCDE", 0)
    for at in range(0, 60_000, 500):
        for name in "ABCDE":
            reply = world.call(name, 1, at=at)
            if reply.drop:
                world.held[name] = reply.drop
                reply = world.give_back(name, 1, at=at + 10)
            if reply.grants:
                empty_since[name] = at
            assert at - empty_since[name] <= 25_000, f"{name} has nothing since {empty_since[name]}"


def test_a_turn_is_counted_from_the_grant() -> None:
    world = World(partitions=1)
    world.call("A", 1, at=0)
    world.call("B", 1, at=3_000)
    assert indexes(world.call("A", 1, at=4_000)) == [0]
    told = world.call("A", 1, at=5_000)
    assert (told.grants, len(told.drop)) == ((), 1)
    assert world.call("A", 1, at=5_010, released=told.drop).grants == ()
    world.call("B", 1, at=5_500)
    assert indexes(world.call("B", 1, at=6_010)) == [0]


def test_two_oversize_heads_that_never_end_take_turns() -> None:
    world, served = World(), dict.fromkeys("AB", 0)
    for at in range(0, 60_000, 500):
        for name in "AB":
            reply = world.call(name, 3, at=at, head=3)
            served[name] += len(reply.grants) == 3
            if reply.drop:
                world.store.sync(
                    LeaseRequest(resource="r", owner=name, seq=10_000 + at, want=3, head=3, released=reply.drop)
                )
                world.seq = 10_001 + at
    assert min(served.values()) >= 20


def test_after_a_restart_the_higher_epoch_wins_and_nothing_lost_is_granted_again() -> None:
    world = World(partitions=1)
    world.call("A", 1, at=0)
    world.give_back("A", 0, at=100)
    world.call("B", 1, at=1_100)
    newer = world.held["B"]
    world.store.restart()
    old = world.call("A", 1, at=1_200, held=(Claim(0, newer[0].epoch - 1),))
    assert indexes(old) == [0], "nobody else has claimed it yet"
    assert world.call("A", 1, at=1_250, held=()).grants == ()
    assert indexes(world.call("B", 1, at=1_300, held=newer)) == [0]
    told = world.call("A", 1, at=1_400, held=(Claim(0, newer[0].epoch - 1),))
    assert (told.grants, [claim.partition for claim in told.drop]) == ((), [0])


def test_epochs_after_a_restart_are_above_all_that_were_given_or_reported() -> None:
    world = World(partitions=2)
    top = max(claim.epoch for claim in (world.call("A", 2, at=0), world.held["A"])[1])
    world.store.restart()
    reported = Claim(0, top + (7 << 32))
    world.call("A", 1, at=100, held=(reported,))
    reply = world.call("B", 1, at=6_100)
    assert reply.grants[0].epoch > reported.epoch


def test_a_reserve_slot_survives_a_restart_only_if_it_is_claimed() -> None:
    world = World(options={"max_instances": 1, "reserved_capacity": 5})
    assert world.call("A", 0, at=0, reserve=True).reserve_slot == 0
    world.store.restart()
    assert world.call("B", 0, at=100, reserve=True).reserve_slot is None
    assert world.call("A", 0, at=200, reserve=True, reserve_held=True).reserve_slot == 0
    assert world.call("B", 0, at=5_199, reserve=True).reserve_slot is None


def test_an_expired_reserve_slot_waits_out_the_quarantine() -> None:
    world = World(options={"max_instances": 1})
    world.call("A", 0, at=0, reserve=True)
    assert world.call("B", 0, at=5_999, reserve=True).reserve_slot is None
    assert world.call("B", 0, at=6_000, reserve=True).reserve_slot == 0


def test_a_decrease_is_in_force_when_it_is_confirmed() -> None:
    world = World()
    world.call("A", 4, at=0)
    version = world.store.configure("r", shared_capacity=150)
    reply = world.call("A", 4, at=100)
    assert ([grant.worth for grant in reply.grants], len(reply.drop)) == ([100, 50], 2)
    assert world.store.status("r").in_force_version == version - 1
    world.call("A", 4, at=200, released=reply.drop, config_version=reply.config_version)
    assert world.store.status("r").in_force_version == version


def test_a_decrease_is_in_force_when_the_leases_of_that_moment_have_ended() -> None:
    world = World()
    world.call("A", 4, at=0)
    version = world.store.configure("r", shared_capacity=150)
    world.now_ms = 4_999
    assert world.store.status("r").in_force_version == version - 1
    world.now_ms = 5_000
    assert world.store.status("r").in_force_version == version


def test_an_increase_is_in_force_at_once_and_keeps_what_is_held() -> None:
    world = World()
    before = world.call("A", 4, at=0).grants
    version = world.store.configure("r", shared_capacity=600)
    assert world.store.status("r").in_force_version == version
    assert world.call("A", 6, at=100).grants[:4] == before


def test_a_ramp_reaches_the_replies_and_the_maximum_does_not_wait_for_it() -> None:
    world = World(options={"ramp": RampSetting(100, 1_000), "reserved_capacity": 10})
    world.store.configure("r", shared_capacity=600)
    reply = world.call("A", 9, at=999)
    assert (reply.shared_capacity, reply.max_capacity, len(reply.grants)) == (400, 610, 4)
    assert len(world.call("A", 9, at=1_000).grants) == 5


def test_the_adaptive_factor_halves_at_most_once_a_second_and_recovers() -> None:
    world = World(options={"adaptive": True})

    def factor(at: int, throttled: float) -> int:
        return world.call("A", 1, at=at, throttled=throttled).factor

    assert [factor(0, 0.01), factor(100, 0.02), factor(900, 1.0), factor(1_100, 1.0)] == [1000, 500, 500, 250]
    assert [factor(2_099, 0.0), factor(2_100, 0.0), factor(4_100, 0.0), factor(99_000, 0.0)] == [250, 350, 550, 1000]
    assert [factor(100_000 + 1_000 * n, 1.0) for n in range(6)][-1] == 50


def test_the_factor_stays_without_the_adaptive_mode() -> None:
    assert World().call("A", 1, at=0, throttled=1.0).factor == 1000


def test_several_dimensions_are_cut_evenly() -> None:
    world = World(options={"shared_capacity": {"rows": 10, "bytes": 100}, "partitions": 3})
    assert [grant.worth for grant in world.call("A", 3, at=0).grants] == [
        {"rows": 3, "bytes": 33},
        {"rows": 3, "bytes": 33},
        {"rows": 4, "bytes": 34},
    ]
    assert world.store.status("r").granted == {"rows": 10, "bytes": 100}


def test_one_owner_can_hold_all_500() -> None:
    assert len(World(partitions=500).call("A", 500, at=0).grants) == 500


def test_the_status_adds_up() -> None:
    world = World()
    world.call("A", 4, at=0, used=120)
    world.call("B", 4, at=0, used=30)
    status = world.store.status("r")
    assert (status.granted, status.used, status.waiting) == (400, 150, 4)
    assert [(o.owner, o.share, o.partitions) for o in status.owners] == [("A", 2, 4), ("B", 2, 0)]


def test_the_clock_of_the_store_never_runs_back() -> None:
    world = World(partitions=1)
    world.call("A", 1, at=10_000)
    world.call("A", 1, at=0)
    assert world.call("B", 1, at=15_999).grants == ()


def test_the_state_survives_its_bytes() -> None:
    world = World(options={"ramp": RampSetting(1, 1), "max_instances": 2})
    world.call("A", 3, at=0, reserve=True, head=2)
    world.store.configure("r", shared_capacity=100)
    state = world.store.state("r")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=LeaseState) == state


def test_an_unreachable_store_is_an_error_and_never_a_grant() -> None:
    world = World()
    world.store.reachable = False
    with pytest.raises(LeaseStoreUnavailable) as raised:
        world.call("A", 1, at=0)
    assert (raised.value.retry, raised.value.code) == (True, "LeaseStoreUnavailable")


def test_a_resource_must_be_provisioned_and_provisioning_twice_changes_nothing() -> None:
    world = World()
    with pytest.raises(UnknownResource):
        world.store.status("other")
    world.call("A", 2, at=0)
    before = world.store.state("r")
    world.store.provision(ResourceConfig(resource="r", shared_capacity=1))
    assert world.store.state("r") == before


@pytest.mark.parametrize(
    ("wrong", "field_"),
    [
        ({"factor": 0}, "factor"),
        ({"shared_capacity": -1}, "shared_capacity"),
        ({"shared_capacity": {"a": 1}}, "partitions"),
        ({"partitions": 3}, "partitions"),
        ({"ramp": RampSetting(0, 1)}, "ramp"),
        ({"total_capacity": 100, "reserved_capacity": 1}, "total_capacity"),
    ],
)
def test_a_wrong_configuration_names_its_key(wrong: dict[str, Any], field_: str) -> None:
    with pytest.raises(CapacityConfig) as raised:
        ResourceConfig(**{"resource": "r", "shared_capacity": 100, **wrong})
    assert raised.value.field == field_


def test_more_than_500_partitions_are_refused_also_at_run_time() -> None:
    world = World()
    with pytest.raises(PartitionsOutOfRange) as raised:
        world.store.configure("r", shared_capacity=50_001)
    assert raised.value.code == "PartitionsOutOfRange"
    with pytest.raises(CapacityConfig, match="ttl_ms"):
        world.store.configure("r", ttl_ms=1)
    assert world.store.status("r").config_version == 1


def test_claims_may_be_plain_pairs() -> None:
    world = World()
    held = [tuple(claim) for claim in (world.call("A", 2, at=0), world.held["A"])[1]]
    reply = world.call("A", 1, at=100, held=(held[0],), released=(held[1],))
    assert (indexes(reply), reply.drop) == ([0], ())
