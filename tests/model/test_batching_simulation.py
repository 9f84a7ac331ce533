"""Crashes at every step, other chunks, late writers and lost stores change no output and no state of batching."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator

import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.stage import Record
from headrace_core.state import MemoryState
from tests.support.simulator import Simulation

STEPS = int(os.environ.get("HEADRACE_SIM_STEPS", "100000"))
SEEDS = [int(os.environ["HEADRACE_SIM_SEED"])] if "HEADRACE_SIM_SEED" in os.environ else range(10)
CONFIG = BatchingConfig(window=50, timeout=200, dedup_horizon=500, max_future_skew=400, max_lateness=900, max_members=3)


def log(seed: int, count: int) -> Iterator[Record]:
    """Data, repeats of the stage before, ticks, flushes, unreadable records; the broker's clock sometimes goes back."""
    dice, at, number = random.Random(seed), 1_700_000_000_000, 0
    for offset in range(count):
        at += dice.choice([-3, 0, 0, 1, 2, 5, 20, 20, 150])
        kind = dice.choices([b"data", b"tick", b"flush"], [60, 5, 1])[0]
        number = max(0, number + dice.choice([1, 1, 1, 1, 0, -2]))
        event = at + dice.choice([-1000, -60, -50, -10, 0, 0, 10, 50, 450])
        value = b"{" if dice.random() < 0.03 else json.dumps({"time": event / 1000, "v": dice.random()}).encode()
        headers = (
            ("kind", kind),
            ("entity", b"te/device/d%d//" % dice.randrange(6)),
            ("channel", b"m/" + dice.choice([b"", b"a", b"b", b"c"])),
            ("id", b"registration:0:%d:0" % number),
        )
        yield Record(
            0, offset, at, b"te", value if kind == b"data" else b"", headers if kind == b"data" else headers[:1]
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_change_neither_outputs_nor_state(seed: int) -> None:
    print(f"replay with HEADRACE_SIM_SEED={seed}")
    records = list(log(seed, STEPS // len(SEEDS)))
    plain, outputs = MemoryState(), []
    stage = BatchingStage(CONFIG)
    for record in records:
        stage.apply(plain, record, outputs.append)
    crashed = Simulation(lambda: BatchingStage(CONFIG), records, seed, late_writers=True).run()
    assert crashed.crashes > 10
    assert crashed.distinct() == [(e.topic, dict(e.headers)["id"], e.value) for e in outputs]
    assert crashed.store.snapshot() == plain.snapshot()
    gauges = stage.gauges(plain)
    results = ("not_measurement", "repeat", "accepted", "invalid", "duplicate", "future", "late")
    assert gauges["in"] == sum(gauges[name] for name in results if name != "not_measurement")
    batches = [json.loads(e.value or b"") for e in outputs if e.topic == "batches"]
    assert len({batch["id"] for batch in batches}) == len(batches)
    assert [b["closed_at"] for b in batches] == sorted(b["closed_at"] for b in batches)
    for batch in batches:
        types = [member["type"] for member in batch["members"]]
        assert len(types) == len(set(types)) <= 3
        assert all(batch["time"] <= m["time"] <= batch["time"] + CONFIG.window for m in batch["members"])
