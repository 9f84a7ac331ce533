"""How long a job waits for a store that is down, and its exit code then (spark-writer.md 10, case 11)."""

from __future__ import annotations

import pytest

from headrace_spark.capacity import LeaseStoreDown
from headrace_spark.database import StateDown
from headrace_spark.jobs.process import exit_code
from headrace_spark.patience import Patience
from headrace_spark.sinks.port import SinkDown


class Away:
    """A store of which each try fails after so many seconds, at first `tries` times."""

    def __init__(self, takes_s: float, tries: int = 10**6) -> None:
        self.now, self.takes_s, self.tries = 1_000.0, takes_s, tries
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self) -> str:
        self.now += self.takes_s
        self.tries -= 1
        if self.tries >= 0:
            raise SinkDown("away")
        return "back"


def kept(away: Away, max_ms: int) -> str:
    return Patience(max_ms, sleep=away.sleep, clock=away.clock).keep(away)


def test_pauses_grow_to_half_a_minute_and_it_goes_on_by_itself() -> None:
    away = Away(0.0, tries=9)
    assert kept(away, 600_000) == "back"
    assert away.slept == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize("takes_s", [0.0, 5.0, 130.0])
def test_it_is_given_up_when_it_was_down_so_long_however_long_a_try_takes(takes_s: float) -> None:
    away = Away(takes_s)
    with pytest.raises(SinkDown):
        kept(away, 600_000)
    assert 600 <= away.now - 1_000 <= 600 + 30 + takes_s


def test_a_try_that_was_long_at_work_is_no_time_of_being_down() -> None:
    away = Away(500.0, tries=3)
    assert kept(away, 600_000) == "back"


def test_a_state_store_that_is_the_sink_is_a_sink_that_is_down() -> None:
    assert exit_code(StateDown("away"), one_database=True) == 6
    assert exit_code(StateDown("away")) == 1
    assert exit_code(LeaseStoreDown("away"), one_database=True) == 1
