"""Pauses and charges with the real batcher."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from headrace_core.capacity.resources import ProvisionedResource
from headrace_spark.exits import Stopping
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
