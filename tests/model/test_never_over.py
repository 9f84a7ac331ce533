"""Never over (capacity.md 14, 17.2) as a simulation, and its negative controls (17.3) over the same seeds.

Each run has lost, late and reordered messages, killed and stopped owners, store restarts, bursty and oversize demand.
`HEADRACE_SEEDS` sets the number of seeds, 300 if it is not given. A failure names its seed.
"""

from __future__ import annotations

import os

import pytest

from tests.support.lease_sim import LIMIT, Build, Run, largest_window

SEEDS = range(int(os.environ.get("HEADRACE_SEEDS", "300")))
BROKEN = {
    "slice pacing, leases of 15 s that are never renewed and are timed from the reply": Build(
        strict=False, renews=False, from_reply=True, ttl_ms=15_000, margin_ms=0
    ),
    "quarantine 0": Build(quarantine_ms=0),
    "deadline from the reply, margin 0": Build(from_reply=True, margin_ms=0),
}


def run(seed: int, build: Build) -> Run:
    """Every third seed begins with the schedule of the third control."""
    return Run(seed, build, late_reply=seed % 3 == 0).go()


def test_no_window_is_above_the_limit() -> None:
    total = 0
    for seed in SEEDS:
        dispatched = run(seed, Build()).dispatched
        assert largest_window(dispatched) <= LIMIT, f"seed {seed}"
        total += sum(cost for _, cost in dispatched)
    assert total > len(SEEDS) * 20 * LIMIT // 10, "the owners must really have spent"


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_fails_for_a_broken_build_over_the_same_seeds(name: str) -> None:
    assert any(largest_window(run(seed, BROKEN[name]).dispatched) > LIMIT for seed in SEEDS)


def test_the_window_is_half_open() -> None:
    assert largest_window([(0, 5), (999, 5)]) == 10
    assert largest_window([(0, 5), (1_000, 5)]) == 5
