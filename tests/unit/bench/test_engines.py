"""The bench measures the work that it says it does; how fast that is, is no test."""

from __future__ import annotations

import json

from bench.__main__ import document
from bench.engines import batching, curves, registration, timeline
from bench.engines.measure import Figure, rated, run_stage
from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.engine import Batcher
from headrace_core.batching.stage import BatchingStage
from headrace_core.registration.stage import RegistrationStage
from headrace_core.state import MemoryState


def test_the_batching_log_has_its_repeats_and_makes_batches_of_four() -> None:
    stage, base = BatchingStage(BatchingConfig()), MemoryState()
    run_stage(stage, base, list(batching.log(20_000)))
    gauges = stage.gauges(base)
    assert gauges["in"] == 20_000
    assert 0.03 < gauges["duplicate"] / gauges["in"] < 0.07
    assert gauges["invalid"] == gauges["late"] == gauges["future"] == 0
    assert 3.5 < gauges["members"] / gauges["closed.timeout"] <= 4


def test_all_data_passes_and_all_early_data_is_replayed() -> None:
    passing, early = MemoryState(), MemoryState()
    stage = RegistrationStage(registration.CONFIG)
    run_stage(stage, passing, list(registration.registrations(10)))
    run_stage(stage, passing, list(registration.passing(10, 200, 10)))
    assert stage.gauges(passing)["passed"] == 200
    run_stage(stage, early, list(registration.early(400)))
    gauges = stage.gauges(early)
    assert (gauges["replayed"], gauges["pending"], gauges["passed"]) == (400, 0, 0)


def test_each_curve_grows_its_state_and_its_messages_are_all_taken() -> None:
    for curve in curves.CURVES:
        base = MemoryState()
        curve.run(base, curve.grow(1000, 100, base, 0))
        curve.run(base, curve.grow(2000, 100, base, 1000))
        if "batches" in curve.name:
            batches = Batcher(base, BatchingConfig()).flush(batching.START_MS)
            assert len(batches) == 2000
            assert sum(len(batch.members) for batch in batches) == 2200  # type: ignore[union-attr]
        else:
            gauges = RegistrationStage(registration.CONFIG).gauges(base)
            assert (gauges["applied"], gauges["passed"]) == ((2000, 200) if "registered" in curve.name else (0, 0))
            assert gauges["pending"] == (0 if "registered" in curve.name else 2200)


def test_a_timeline_life_ends_completed_beside_what_is_pending() -> None:
    engine, base, lived = timeline.filled(50)
    timeline.live((engine, base, lived), 1)
    assert lived == [3]
    answer = engine.apply(base, timeline.FAR_MS, "due", {"limit": 500}).answer
    assert len(answer["ids"]) == 1


def test_a_missed_figure_says_so_and_brings_its_profile() -> None:
    def work(count: int) -> int:
        return sum(number % 7 for number in range(count))

    missed = rated("slow", 1, work, lambda: 300_000, target=1e12, runs=1)
    met = Figure("cost", 5.0, "us", 6.0, least=False, floor=10.0)
    assert (missed.met, met.met, Figure("free", 1.0, "x").met) == (False, True, None)
    assert any("work" in name for name, _ in missed.profile)
    found = json.loads(json.dumps(document([missed, met], quick=True, seconds=1.0)))
    assert found["missed"] == ["slow"]
    assert found["figures"]["cost"]["of_floor"] == 0.5
