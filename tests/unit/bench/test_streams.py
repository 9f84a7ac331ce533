"""The bench of the stream processor measures the work that it says it does; how fast that is, is no test."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from bench.streams import traffic
from bench.streams.rounds import Contestant, Round, contest, summary
from bench.streams.run import Run, document
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.partitioner import partition_of
from headrace_core.stage import header
from headrace_core.state import MemoryState, Overlay


def test_each_partition_has_its_root_and_a_quarter_of_the_messages() -> None:
    assert [partition_of(root.encode(), traffic.PARTITIONS) for root in traffic.roots()] == [0, 1, 2, 3]
    records = list(traffic.telemetry(0, 16_000, 1_000))
    assert Counter(record.partition for record in records) == dict.fromkeys(range(4), 4_000)
    assert all(partition_of(r.key or b"", traffic.PARTITIONS) == r.partition for r in records[:100])


def test_all_telemetry_is_routed_and_makes_batches_of_four() -> None:
    source = traffic.Registered(1_000)
    routed = [
        *source.routed(traffic.telemetry(0, 8_000, 1_000)),
        *source.routed(traffic.telemetry(8_000, 8_000, 1_000)),
    ]
    assert {header(record.headers, "kind") for record in routed} == {b"data"}
    ids = [header(record.headers, "id") for record in routed]
    assert len(set(ids)) == 16_000
    mine = [record for record in routed if record.partition == 2]
    stage, base = BatchingStage(BatchingConfig()), MemoryState()
    overlay, emissions = Overlay(base), list[Any]()
    for offset, record in enumerate(mine):
        stage.apply(overlay, record._replace(offset=offset), emissions.append)
    base.commit(overlay.mutations)
    gauges = stage.gauges(base)
    assert gauges["accepted"] == len(mine) == 4_000
    assert gauges["members"] == 4 * gauges["closed.timeout"] == 4 * len(emissions) > 2_000


class Held:
    """A process that does what it is given at once, and notes what was done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.cpu_s = 0.0

    def hold(self) -> None:
        self.done.append("hold")

    def let_go(self) -> None:
        self.done.append("let go")
        self.cpu_s += 2.0

    def until(self, condition: Any, what: str, seconds: float, *, every_s: float) -> None:
        assert condition(), (what, seconds, every_s)


def test_contestants_take_turns_and_are_held_while_their_input_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.streams.rounds.SETTLE_S", 0)
    processes, order, written = [Held(), Held()], list[str](), Counter[str]()

    def made(name: str, process: Any) -> Contestant:
        def fill() -> int:
            assert process.done[-1] == "hold"
            order.append(name)
            written[name] += 10
            return 10

        return Contestant(name, process, fill, lambda: written[name])

    both = [made(name, process) for name, process in zip("ab", processes, strict=True)]
    contest(both, 2)
    assert "".join(order) == "ababab"
    assert [len(one.rounds) for one in both] == [2, 2]
    assert {round_.cpu_us for one in both for round_ in one.rounds} == {200_000.0}
    assert processes[0].done == ["hold", "let go"] * 3


def test_a_summary_has_least_median_and_most() -> None:
    found = summary([Round(100, 1.0, 0.1), Round(100, 2.0, 0.3), Round(100, 4.0, 0.2)])
    assert (found["rate_min"], found["rate_median"], found["rate_max"]) == (25, 50, 100)
    assert (found["cpu_us_min"], found["cpu_us_median"], found["cpu_us_max"]) == (1000, 2000, 3000)


def test_the_document_tells_targets_met_and_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.streams.run._java", lambda: "openjdk")
    place: Any = SimpleNamespace()
    run = Run("", place, place)
    slow = SimpleNamespace(name="slow", rounds=[Round(100, 1.0, 0.1)])
    run.beside("slow", run.rates(slow, "a to b", 1_000), (50.0, 10.0))  # type: ignore[arg-type]
    told = document(run, quick=True, seconds=1.0)
    assert told["missed"] == ["slow, a to b, rate", "slow, CPU by that of Kafka Streams"]
    assert told["met"] == ["slow, rate by that of Kafka Streams"]
    assert told["figures"]["slow, a to b, rate"]["notes"]["rates"] == [100]
