"""The edges of the lease store's rules: each test here once made the difference between the code and a changed one.

What `make mutants` still reports is the same store in other words, or cannot be seen from outside: a default that no
caller uses; the epoch of a partition or slot that was never granted; steps of `turns` and of epochs (only their order
counts); `zip(strict=)` over equal lengths; `/` where the quotient is whole; text of messages; an owner that hands on
twice in one call instead of once (`passed` forgotten and found again); a wish for nothing that is counted as a wish, or
that is not raised to a head which raises the share anyway; a claim of partition 500 that is dropped as surplus instead
of at once; the turn of one oversize head that has no rival; an end of quarantine that is now, when the partition is
granted instead, or of a partition beyond the capacity (a call too many); granting zero more.
"""

from __future__ import annotations

import pytest

from headrace_core.capacity.handover import hand_over, take_over
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.protocol import Claim, LeaseRequest, ResourceConfig, Spent
from headrace_core.capacity.shares import Wish, shares
from tests.unit.core.capacity.test_lease_store import World, indexes


def test_ages_are_rounded_down_never_up() -> None:
    assert hand_over([(89_900_000, {"": 4})], [(7, {"": 9})], 100) == (Spent(7, 10, 4),)
    assert take_over([Spent(0, 99, 5)], 200) == [(102 * NS_PER_MS, {"": 5})]


def test_a_partition_takes_entries_up_to_its_worth() -> None:
    newest = [(50 * NS_PER_MS, {"": 30}), (50 * NS_PER_MS, {"": 30}), (50 * NS_PER_MS, {"": 1})]
    assert hand_over(newest, [(0, {"": 60}), (1, {"": 60})], 100) == (Spent(0, 40, 60), Spent(1, 40, 1))
    assert hand_over([(0, {"b": 5})], [(1, {}), (2, {})], 1) == (Spent(2, 0, {"b": 5}),)


def test_entries_go_with_a_partition_for_one_second_and_begin_at_age_zero() -> None:
    for at_ms, ages in ((400, [0]), (1_400, [999]), (1_401, [])):
        world = World(partitions=1, options={"handover": "inherit"})
        world.call("A", 1, at=0, inherits=True)
        world.give_back("A", 0, at=400, inherits=True, spent=(Spent(0, 0, 30),))
        assert [each.age_ms for each in world.call("B", 1, at=at_ms, inherits=True).inherited] == ages


def test_of_oversize_heads_the_one_known_to_wait_longest_is_raised() -> None:
    def raised(first: int | None, second: int | None) -> int:
        wishes = [Wish("A", 4, head=4, head_since_ms=first), Wish("B", 4, head=4, head_since_ms=second)]
        return shares(4, wishes)["A"]

    assert (raised(None, 5), raised(1, 0), raised(0, 1)) == (0, 0, 4)


def test_epochs_begin_above_the_generation_and_go_on_above_any_that_is_heard_of() -> None:
    world = World()
    assert world.call("A", 1, at=0).grants[0].epoch == (1 << 32) + 1
    world.store.restart()
    world.call("A", 0, at=100, held=(), released=(Claim(0, (9 << 32) + 5),))
    assert world.store.state("r").last_epoch == 10 << 32
    assert world.call("B", 1, at=7_000).grants[0].epoch == (10 << 32) + 1


def test_epochs_stay_above_those_of_owners_that_a_store_without_a_learning_time_hears_of() -> None:
    """A coordinator that was called cold although an owner was left, and whose wall clock had been set back."""
    world = World()
    stale = Claim(0, (9 << 32) + 5)
    reply = world.call("A", 1, at=0, held=(stale,))
    assert (reply.drop, reply.grants[0].epoch) == ((stale,), (10 << 32) + 1)


def test_a_stale_answer_names_the_version_of_the_configuration() -> None:
    world = World()
    world.call("A", 1, at=0, seq=5)
    world.store.configure("r", shared_capacity=300)
    assert world.call("A", 1, at=1, seq=5).config_version == 2


def test_no_next_call_is_named_when_nothing_is_missing_or_nothing_is_known() -> None:
    world = World(partitions=2)
    world.call("A", 2, at=0)
    kept, given = world.held["A"]
    assert world.call("B", 1, at=10).next_sync_ms == 0, "nobody knows when A gives back"
    world.call("B", 0, at=20)
    world.held["A"] = (kept,)
    assert world.call("A", 1, at=100, released=(given,)).next_sync_ms == 0, "all that A wants is there"


def test_the_end_of_the_learning_time_is_named() -> None:
    world = World()
    world.store.restart()
    assert world.call("A", 1, at=100).next_sync_ms == 5_900


def test_an_owner_is_forgotten_when_it_was_silent_for_a_ttl() -> None:
    world = World()
    world.call("A", 1, at=0)
    world.now_ms = 4_999
    assert [each.owner for each in world.store.status("r").owners] == ["A"]
    world.now_ms = 5_000
    assert world.store.status("r").owners == ()


def test_a_wish_is_never_below_nothing_nor_below_the_head() -> None:
    world = World()
    world.call("A", -1, at=0)
    assert world.store.status("r").owners[0].want == 0
    assert len(world.call("A", 0, at=10, head=3).grants) == 3


def test_a_pause_of_one_millisecond_is_a_pause() -> None:
    assert World().call("A", 0, at=0, pause_ms=1).pause_ms == 1


def test_the_factor_stays_whole_and_each_quiet_second_counts_once() -> None:
    world = World(options={"adaptive": True})
    falling = [world.call("A", 0, at=at, throttled=0.02).factor for at in (0, 1_000, 2_000, 3_000)]
    assert falling == [500, 250, 125, 62]
    rising = [world.call("A", 0, at=3_000 + after).factor for after in (999, 2_000, 2_500, 3_000)]
    assert rising == [62, 262, 262, 362]


def test_claims_and_releases_of_what_was_never_granted_change_nothing() -> None:
    world = World()
    reply = world.call("A", 0, at=0, held=(Claim(2, 77),), released=(Claim(3, 77),))
    assert (reply.drop, world.store.state("r").partitions) == ((Claim(2, 77),), {})


def test_what_is_given_back_while_learning_is_in_quarantine_and_belongs_to_its_last_owner() -> None:
    world = World()
    world.store.restart()
    world.call("A", 0, at=100, held=(), released=(Claim(0, 77),))
    found = world.store.state("r").partitions[0]
    assert (found.owner, found.last_owner, found.free_at_ms) == (None, "A", 1_100)


def test_while_learning_an_older_release_does_not_undo_a_newer_claim() -> None:
    world = World()
    world.store.restart()
    world.call("A", 1, at=100, held=(Claim(0, 77),))
    world.call("B", 0, at=200, released=(Claim(0, 76),))
    assert world.store.state("r").partitions[0].owner == "A"


@pytest.mark.parametrize("claim", [Claim(500, 77), Claim(-1, 77)])
def test_while_learning_only_partitions_that_can_exist_are_believed(claim: Claim) -> None:
    world = World()
    world.store.restart()
    assert world.call("A", 1, at=100, held=(claim,)).drop == (claim,)


def test_of_two_equal_claims_the_first_is_believed() -> None:
    world = World()
    world.store.restart()
    world.call("A", 1, at=100, held=(Claim(0, 77),))
    assert world.call("B", 1, at=200, held=(Claim(0, 77),)).drop == (Claim(0, 77),)


def test_what_is_learned_and_not_renewed_ends_after_a_ttl() -> None:
    world = World()
    world.store.restart()
    world.call("A", 1, at=100, held=tuple(Claim(index, 70 + index) for index in range(3)))
    assert {lease.expires_ms for lease in world.store.state("r").partitions.values()} == {5_100}


def test_a_partition_beyond_the_capacity_is_not_held_and_not_kept() -> None:
    world = World(partitions=2)
    world.call("B", 0, at=0)
    world.call("A", 1, at=1)
    world.call("B", 1, at=2)
    world.store.configure("r", shared_capacity=100)
    assert indexes(world.call("A", 1, at=10)) == [0], "A holds the only one that is left"
    reply = world.call("B", 1, at=20)
    assert (indexes(reply), [claim.partition for claim in reply.drop]) == ([], [1])


def test_a_partition_beyond_the_capacity_is_given_up_even_by_one_that_wants_no_more() -> None:
    world = World(partitions=4)
    world.call("B", 3, at=0)
    assert indexes(world.call("A", 1, at=1)) == [3]
    world.give_back("B", 0, at=2)
    world.store.configure("r", shared_capacity=300)
    reply = world.call("A", 1, at=1_002)
    assert ([claim.partition for claim in reply.drop], indexes(reply)) == ([3], [0])


def test_a_tie_goes_to_the_one_that_holds_more_than_it_has_been_dealt() -> None:
    world = World(partitions=3)
    world.call("A", 1, at=0)
    world.call("B", 2, at=1)
    assert len(world.call("A", 3, at=2).grants) == 1
    assert len(world.call("B", 3, at=3).grants) == 2


def told_to_drop(world: World, names: str, until: int) -> set[str]:
    """Those who hear of a drop while nobody obeys."""
    told = set()
    for at in range(5_000, until, 50):
        for name in names:
            held = world.held.get(name, ())
            if world.call(name, 1, at=at).drop:
                told.add(name)
            world.held[name] = held
    return told


def test_one_waiting_owner_makes_one_other_hand_on_and_no_more() -> None:
    world = World(partitions=2)
    for at in (0, 2_500):
        for name in "ACB":
            world.call(name, 1, at=at)
    assert told_to_drop(world, "ACB", 5_300) == {"A"}


def test_a_partition_in_quarantine_is_as_good_as_one_that_is_handed_on() -> None:
    world = World(partitions=3)
    for at in (0, 2_500):
        for name in "ACEBD":
            world.call(name, 1, at=at)
    world.give_back("A", 0, at=4_990)
    assert told_to_drop(world, "CEBD", 5_300) == {"C"}


def test_who_comes_after_a_turn_is_behind_those_that_already_wait() -> None:
    world = World(partitions=1)
    world.call("A", 1, at=0)
    world.call("B", 1, at=0)
    for at in (2_000, 4_000, 5_000):
        world.call("A", 1, at=at)
    world.call("B", 1, at=5_010)
    world.call("D", 1, at=5_020)
    assert {each.owner: each.share for each in world.store.status("r").owners} == {"A": 0, "B": 1, "D": 0}


def test_a_head_that_needs_just_the_fair_share_is_not_oversize() -> None:
    world = World()
    world.call("A", 4, at=0, head=2)
    world.call("B", 4, at=1)
    assert world.store.state("r").owners["A"].head_since_ms is None


def test_of_two_oversize_heads_the_served_one_yields_after_five_seconds() -> None:
    world = World()
    world.call("A", 4, at=0, head=4)
    world.call("B", 4, at=0, head=4)
    for at in (1_000, 2_000, 3_000, 4_000, 4_999):
        assert len(world.call("A", 4, at=at, head=4).grants) == 4
        world.call("B", 4, at=at, head=4)
    assert world.call("A", 4, at=5_000, head=4).grants == ()


def test_no_share_is_raised_while_a_head_within_its_fair_share_has_waited_longer() -> None:
    world = World()
    world.call("A", 4, at=0, head=4)
    world.call("B", 2, at=100, head=2)
    assert len(world.call("A", 4, at=150, head=4).grants) == 4, "both wait since 100"
    dropped = world.call("A", 4, at=200).drop
    again = world.call("A", 4, at=300, head=4, released=dropped)
    assert (len(dropped), len(again.grants)) == (2, 2), "B waits since 100, this head since 300"
    world.call("B", 2, at=310, head=2)
    assert len(world.call("B", 2, at=1_300, head=2).grants) == 2
    assert len(world.call("A", 4, at=1_310, head=4).grants) == 2
    assert len(world.call("B", 2, at=1_320, head=2).drop) == 2, "B has been served: now A is raised"


def test_a_head_that_has_what_it_needs_does_not_wait() -> None:
    world = World()
    for at in (0, 10):
        world.call("B", 2, at=at, head=2)
    world.call("A", 4, at=100, head=4)
    assert len(world.call("B", 2, at=110, head=2).drop) == 2


def test_the_same_owner_gets_its_reserve_slot_back_inside_the_quarantine() -> None:
    world = World(options={"reserved_capacity": 10})
    assert world.call("A", 0, at=0, reserve=True).reserve_slot == 0
    world.call("A", 0, at=100)
    assert world.call("B", 0, at=200, reserve=True).reserve_slot is None
    assert world.call("A", 0, at=210, reserve=True).reserve_slot == 0


def test_a_slot_beyond_the_number_of_instances_is_lost() -> None:
    world = World(options={"reserved_capacity": 10, "max_instances": 2})
    world.call("A", 0, at=0, reserve=True)
    assert world.call("B", 0, at=0, reserve=True).reserve_slot == 1
    world.store.configure("r", max_instances=1)
    assert world.call("B", 0, at=10, reserve=True).reserve_slot is None


def test_the_maximum_adds_the_reserve_of_each_dimension() -> None:
    store = MemoryStore(lambda: 0)
    store.provision(
        ResourceConfig(
            resource="r", shared_capacity={"rows": 10, "bytes": 100}, partitions=2, reserved_capacity={"rows": 3}
        )
    )
    assert store.sync(LeaseRequest(resource="r", owner="A", seq=1)).max_capacity == {"rows": 13, "bytes": 100}
