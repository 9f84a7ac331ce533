"""Nobody who fits waits for ever (capacity.md 17.5), with the real batcher and lease agent and no faults."""

from __future__ import annotations

import pytest

from headrace_core.capacity.protocol import Handover
from tests.support.agent_sim import Build, Load, Process, Run
from tests.support.lease_sim import largest_window

TWO = Load(instances=2, length_ms=30_000)


def calm(load: Load = TWO, handover: Handover = "wait") -> tuple[Run, list[Process]]:
    run = Run(0, Build(handover=handover), load, calm=True)
    return run, run.processes


def spent(run: Run, name: str, since_ms: int, until_ms: int) -> int:
    return sum(
        op.cost
        for at_ms, who, op in run.done
        if who == name and since_ms <= at_ms < until_ms and isinstance(op.cost, int)
    )


def test_two_oversize_heads_both_pass_while_both_always_want_everything() -> None:
    run, (first, second) = calm()
    for process in (first, second):
        run.want(process, 100, 200)
        run.want(process, 1_500, 1)
        run.want(process, 100, 200)
    run.go()
    passed = [(who, at_ms) for at_ms, who, op in run.done if op.cost == 1_500]
    assert {who for who, _ in passed} == {first.name, second.name}
    assert largest_window(run.dispatched) <= TWO.limit


def test_a_stream_of_oversize_operations_does_not_starve_the_other() -> None:
    run, (greedy, modest) = calm()
    run.want(greedy, TWO.limit, 40)
    run.want(modest, 100, 300)
    run.go()
    for since_ms in range(0, 30_000, 5_000):
        assert spent(run, modest.name, since_ms, since_ms + 5_000) > 0
        assert spent(run, greedy.name, since_ms, since_ms + 5_000) > 0


def test_a_head_passes_although_the_last_partition_is_worth_less() -> None:
    """350 in partitions of 100: whoever holds the remainder needs one more partition for a head of 200."""
    run, (first, second) = calm(Load(partitions=4, factor=90, instances=2, length_ms=20_000))
    resource = first.core.limiter
    assert resource is not None
    run.want(second, 45, 60)
    run.want(first, 45, 40)
    run.want(first, 180, 3)
    run.go()
    assert sum(op.cost == 180 for _, _, op in run.done) == 3


def moved_after(handover: Handover) -> int:
    """The first is saturated, then falls silent as the second begins: until the second spends as much in a second."""
    run, (first, second) = calm(handover=handover)
    run.want(first, 20, 1_000)
    run.go(6_000)
    while first.core.buffered:
        run.go(run.now_ms + 25)
    began_ms = run.now_ms
    run.want(second, 20, 2_000)
    run.go(began_ms + 10_000)
    assert largest_window(run.dispatched) <= TWO.limit
    ends = range(began_ms + 1_000, began_ms + 10_000, 25)
    return next(end for end in ends if spent(run, second.name, end - 1_000, end) >= TWO.limit * 9 // 10) - began_ms


@pytest.mark.parametrize(("handover", "at_most_ms"), [("wait", 3_200), ("inherit", 3_200)])
def test_demand_moves_from_one_instance_to_another(handover: Handover, at_most_ms: int) -> None:
    """2.2 s to hold it (capacity.md 18), and the second in which it is spent."""
    assert moved_after(handover) <= at_most_ms


def test_inheriting_moves_demand_sooner_than_waiting() -> None:
    assert moved_after("inherit") < moved_after("wait")
