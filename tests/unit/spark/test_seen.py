"""What is seen of operations on their way to the sink: waits, answers, latencies, and what tasks report of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from headrace_core.capacity.events import Event
from headrace_core.capacity.resources import ProvisionedResource
from headrace_spark.host_pacing import HostPacer
from headrace_spark.pacing import Pacer
from headrace_spark.seen import BOUNDS_S, Seen, Watched, skew
from headrace_spark.sinks.callables import Result
from headrace_spark.sinks.port import SinkDown
from headrace_spark.transforms.records import light
from tests.unit.spark.fakes import document, member, reports


class Paced:
    """A pacing that makes every operation wait."""

    def __init__(self, wait_s: float = 0.0, refuse: Exception | None = None) -> None:
        self.wait_s, self.refuse, self.stopped = wait_s, refuse, False

    def run(self, _cost: int, work: Callable[[int], Any]) -> Any:
        if self.refuse is not None:
            raise self.refuse
        time.sleep(self.wait_s)
        return work(time.monotonic_ns())

    def used(self) -> int:
        return 7

    def stop(self) -> None:
        self.stopped = True


def samples(one: Watched) -> dict[str, float]:
    return {
        sample.name.removeprefix("headrace_spark_")
        + "".join(f"/{value}" for value in sample.labels.values()): sample.value
        for family in one.collect()
        for sample in family.samples
    }


def failing(error: Exception) -> Callable[[int], None]:
    def work(_: int) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("work", "answer"),
    [
        (lambda _: 5, "done"),
        (lambda _: None, "done"),
        (lambda _: Result("retry"), "retry"),
        (lambda _: Result("reject"), "reject"),
        (failing(psycopg.errors.CheckViolation("no")), "reject"),
        (failing(psycopg.OperationalError("gone")), "down"),
        (failing(SinkDown("gone")), "down"),
        (failing(TimeoutError()), "down"),
        (failing(KeyError("bug")), "error"),
    ],
)
def test_every_answer_has_its_class(work: Callable[[int], Any], answer: str) -> None:
    one = Watched(Paced())
    with suppress(psycopg.Error, SinkDown, TimeoutError, KeyError):
        one.run(3, work)
    found = samples(one)
    assert {name for name, value in found.items() if name.startswith("sink_answers_total") and value} == {
        f"sink_answers_total/{answer}"
    }
    assert found["sink_latency_seconds_count"] == 1
    assert found["capacity_charged_total"] == found["capacity_estimated_total"] == 3


def test_waiting_is_not_latency_and_a_charge_replaces_the_estimate() -> None:
    one = Watched(Paced(wait_s=0.05))

    def work(_: int) -> Result:
        time.sleep(0.02)
        return Result(charge=9)

    assert one.run(3, work) == Result(charge=9)
    seen = one.take()
    assert seen.waited >= 0.05
    assert seen.seconds >= 0.02
    assert seen.latency[: BOUNDS_S.index(0.01) + 1] == [0] * 4, "not faster than it was"
    assert (seen.estimated, seen.charged) == (3, 9)
    assert one.take() == Seen(), "taken once"


def test_what_never_went_out_is_no_answer() -> None:
    one = Watched(Paced(refuse=ValueError("too expensive")))
    with pytest.raises(ValueError, match="too expensive"):
        one.run(3, lambda _: None)
    assert one.take() == Seen()


def test_reports_of_tasks_add_up_and_travel() -> None:
    task, driver = Watched(Paced()), Watched(Paced())
    for _ in range(3):
        task.run(2, lambda _: None)
    driver.run(1, lambda _: Result("retry"))
    blob = msgspec.msgpack.encode(task.take())
    driver.add(msgspec.msgpack.decode(blob, type=Seen))
    found = samples(driver)
    assert (found["sink_answers_total/done"], found["sink_answers_total/retry"]) == (3, 1)
    assert found["sink_latency_seconds_count"] == found["sink_latency_seconds_bucket/+Inf"] == 4
    assert found["capacity_estimated_total"] == 7


def test_the_histogram_is_cumulative() -> None:
    one = Watched(Paced())
    latency = [0] * (len(BOUNDS_S) + 1)
    latency[0], latency[3], latency[-1] = 2, 1, 1
    one.add(Seen(latency=latency, seconds=60.5))
    found = samples(one)
    assert (found["sink_latency_seconds_bucket/0.001"], found["sink_latency_seconds_bucket/0.005"]) == (2, 2)
    assert (found["sink_latency_seconds_bucket/0.01"], found["sink_latency_seconds_bucket/30.0"]) == (3, 3)
    assert (found["sink_latency_seconds_bucket/+Inf"], found["sink_latency_seconds_sum"]) == (4, 60.5)


def test_pauses_and_stalls_are_counted_and_the_inner_one_is_asked_and_stopped() -> None:
    inner = Paced()
    one = Watched(inner)
    for name in ("pause", "pause-extended", "stalled", "batch", "pause"):
        one.heard(Event(name))
    assert (samples(one)["capacity_pauses_total"], samples(one)["capacity_stalls_total"]) == (2, 1)
    assert one.used() == 7
    one.stop()
    assert inner.stopped


def test_a_real_pacer_tells_its_pauses() -> None:
    pacer = Pacer(ProvisionedResource(100), quarantine=False)
    one = Watched(pacer)
    try:
        pacer._batcher.pause(50)
        deadline = time.monotonic() + 60
        while not samples(one)["capacity_pauses_total"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        one.stop()


def test_skew_is_the_largest_part_of_one_key_staged_or_not() -> None:
    values = [
        document(1, [member(n, 1.0) for n in range(6)], source="te/a///"),
        document(2, [member(n, 1.0) for n in range(3)], source="te/b///"),
        document(3, [member(n + 9, 1.0) for n in range(3)], source="te/b///"),
        b"{",
    ]
    found = reports(*values)
    assert skew(found) == skew([light(one) for one in found]) == 0.5
    assert skew(reports(b"{")) == skew([]) == 0.0


def test_the_achieved_rate_has_what_tasks_sent_where_the_driver_does_not_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Watched(Paced())
    one.tasks(5_000, 10 * 1_000_000_000)
    assert one.used() == 500, "the driver's 7 are not of the same second"
    one.tasks(300, 1_000_000)
    assert one.used() == 300, "a stage shorter than a second is no higher rate"
    one.tasks(5, 1_000_000)
    assert one.used() == 7, "the driver sends more now than the tasks did"
    one.tasks(300, 1_000_000)
    later_ns = time.monotonic_ns() + 16 * 1_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: later_ns)
    assert one.used() == 7, "what is over does not count for ever"


def test_a_ledger_of_all_processes_needs_no_report(tmp_path: Path) -> None:
    one = Watched(HostPacer(tmp_path / "ledger", 100))
    one.run(5, lambda at_ns: at_ns)
    one.tasks(50, 1)
    assert one.used() == 5
