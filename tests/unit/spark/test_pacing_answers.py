"""Pauses and charges with the real batcher."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from headrace_core.capacity.resources import ProvisionedResource
from headrace_spark.exits import Stalled, Stopping
from headrace_spark.pacing import SECOND_NS, Pacer


@pytest.fixture
def pacer() -> Iterator[Pacer]:
    made = Pacer(ProvisionedResource(1000), quarantine=False)
    yield made
    made.stop()


def test_nothing_goes_out_before_the_pause_that_was_asked_for_is_over(pacer: Pacer) -> None:
    pacer.run(1, lambda at_ns: at_ns)
    began = time.monotonic_ns()
    pacer.pause(1500, "resource")
    assert pacer.run(1, lambda at_ns: at_ns) - began >= 1_499_000_000


def test_a_charge_above_the_cost_is_spent_at_once(pacer: Pacer) -> None:
    first = pacer.settled(10, lambda at_ns: at_ns, lambda _: 1000)
    assert pacer.run(1, lambda at_ns: at_ns) - first >= SECOND_NS * 0.95, "the capacity of this second was used up"


def test_a_lower_charge_and_none_change_nothing_that_is_spent(pacer: Pacer) -> None:
    first = pacer.settled(1000, lambda at_ns: at_ns, lambda _: 1)
    second = pacer.settled(1000, lambda at_ns: at_ns, lambda _: None)
    assert second - first >= SECOND_NS * 0.95


def test_the_resource_is_told_which_share_of_the_last_second_was_refused() -> None:
    resource = ProvisionedResource(1000)
    told: list[float] = []
    resource.throttled = told.append  # type: ignore[method-assign, assignment]
    pacer = Pacer(resource, quarantine=False)
    try:
        for well in (True, False, True, True):
            pacer.answered(well=well)
    finally:
        pacer.stop()
    assert told[:2] in ([0.0, 0.5], [0.0, 1.0])
    assert len(told) == 4
    assert 0.0 <= told[3] <= told[2] <= 0.5


def test_who_waits_at_the_end_is_told(pacer: Pacer) -> None:
    pacer.run(1, lambda at_ns: at_ns)
    pacer.pause(600_000, "instance")
    found: list[BaseException] = []
    went: list[int] = []

    def wait() -> None:
        try:
            pacer.run(1, went.append)
        except BaseException as error:
            found.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not pacer._batcher.buffered:
        time.sleep(0.01)
    pacer.stop()
    waiter.join(60)
    assert [type(one) for one in found] == [Stopping]
    assert went == []


def test_what_waits_while_nothing_goes_out_anywhere_is_taken_back() -> None:
    quiet = Pacer(ProvisionedResource(1000), quarantine=False, max_wait_ms=200)
    went: list[int] = []
    try:
        quiet.pause(3_000, "instance")
        with pytest.raises(Stalled, match=r"\(max_wait_ms\): paused"):
            quiet.run(1, went.append)
        quiet._max_wait_ms = 60_000
        assert quiet.run(2, lambda at_ns: at_ns) > 0
        assert went == [], "it does not go out later"
    finally:
        quiet.stop()


def test_progress_of_another_owner_is_progress() -> None:
    busy = Pacer(ProvisionedResource(1000), quarantine=False, max_wait_ms=1_000, elsewhere=lambda: True)
    try:
        began = time.monotonic_ns()
        busy.pause(4_000, "instance")
        assert busy.run(1, lambda at_ns: at_ns) - began >= 3 * SECOND_NS
    finally:
        busy.stop()


def test_several_are_at_work_at_one_time_but_not_more() -> None:
    pacer, inside = Pacer(ProvisionedResource(100_000), quarantine=False, concurrent=3), set[int]()
    most, turn = [0], threading.Lock()

    def work(at_ns: int) -> None:
        with turn:
            inside.add(at_ns)
            most[0] = max(most[0], len(inside))
        time.sleep(0.1)
        with turn:
            inside.discard(at_ns)

    try:
        threads = [threading.Thread(target=pacer.run, args=(1, work)) for _ in range(9)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        pacer.stop()
    assert 2 <= most[0] <= 3
