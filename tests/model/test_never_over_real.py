"""Never over (capacity.md 14, 17.2) with the real BatcherCore and LeaseAgent, and its negative controls (17.3).

Here with oversize operations, with reserve slots, and with ledgers that are handed over; vector CAP-111 has the plain
case (test_capacity_scenarios.py). `HEADRACE_SEEDS` sets the number of seeds, 150 if it is not given. A failure names
its seed.
"""

from __future__ import annotations

import os

import pytest

from tests.support.agent_sim import BROKEN, BROKEN_HANDOVER, INHERITS, Build, Load, Run
from tests.support.lease_sim import largest_window

SEEDS = range(int(os.environ.get("HEADRACE_SEEDS", "150")))
PART = 30
PLAIN = Load(costs=(60, 100, 300, 900))
RESERVED = Load(costs=(60, 100, 300, 900), reserve=200, slots=2)


def load_of(seed: int) -> Load:
    """Every fourth seed has reserve slots, fewer than there are owners."""
    return RESERVED if seed % 4 == 1 else PLAIN


def run(seed: int, build: Build) -> Run:
    """Every third seed begins with the schedule of the third control."""
    return Run(seed, build, load_of(seed), late_reply=seed % 3 == 0).go()


@pytest.mark.parametrize("first", SEEDS[::PART])
@pytest.mark.parametrize("build", [Build(), INHERITS], ids=["quarantine", "inherit"])
def test_no_window_is_above_the_limit(build: Build, first: int) -> None:
    """The same seeds as for the broken builds, in parts."""
    total, seeds = 0, [seed for seed in SEEDS if first <= seed < first + PART]
    for seed in seeds:
        dispatched = run(seed, build).dispatched
        assert largest_window(dispatched) <= load_of(seed).limit, f"seed {seed}"
        total += sum(cost for _, cost in dispatched)
    assert total > len(seeds) * 4 * PLAIN.limit, "the owners must really have spent"


@pytest.mark.parametrize("name", BROKEN)
def test_the_check_fails_for_a_broken_build_over_the_same_seeds(name: str) -> None:
    over = (largest_window(run(seed, BROKEN[name]).dispatched) > load_of(seed).limit for seed in SEEDS)
    assert any(over)


@pytest.mark.parametrize("name", BROKEN_HANDOVER)
def test_the_check_fails_for_a_broken_handover_over_the_same_seeds(name: str) -> None:
    build = BROKEN_HANDOVER[name]
    assert any(largest_window(run(seed, build).dispatched) > load_of(seed).limit for seed in SEEDS)
