"""A capacity that was lowered at run time stays low when a store without memory restarts, and its next user provisions
the old, higher one (capacity.md 13, 14 (f)). Real owners in virtual time, with lost, late and doubled messages; owners
are killed, stopped and cut off. The same check finds owners that do not tell what they were told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.windows import highest
from headrace_core.capacity.agent import LeaseAgent
from headrace_core.capacity.lease_state import new_state
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.pacing import NS_PER_MS
from headrace_core.capacity.protocol import LeaseRequest
from tests.support.agent_sim import Build, Load, Process, Run

LOW, SEEDS, STEP_MS = 600, 60, 50
LOAD = Load(length_ms=24_000)


class Forgetful(MemoryStore):
    """At a restart somebody provisions at once what a file says."""

    def restart(self) -> None:
        self._generation += 1
        for name, state in self._states.items():
            filed = replace(state.config, shared_capacity=LOAD.shared)
            self._states[name] = new_state(filed, self._clock_ms(), generation=self._generation, learning=True)


class Lowered(Run):
    """Its store forgets, and its users want nothing that can never fit."""

    def __init__(self, seed: int, build: Build) -> None:
        super().__init__(seed, build, LOAD)
        self.store.__class__ = Forgetful

    def want(self, process: Process, cost: int, count: int) -> None:
        if cost <= LOW:
            super().want(process, cost, count)


class Mute(LeaseAgent):
    """Broken: it does not tell the configuration that it was told."""

    def begin(self, now_ms: int) -> LeaseRequest:
        return replace(super().begin(now_ms), config=None)


def largest_second(seed: int, agent: type[LeaseAgent]) -> int | None:
    """The most in any second that begins a second after the decrease was in force, with a restart then; None if it
    was not in force in time, or no owner that lives had been told of it by then."""
    run = Lowered(seed, Build(agent=agent))
    run.go(3_000)
    version = run.store.configure("default", shared_capacity=LOW)
    for until_ms in range(3_000, 10_000, STEP_MS):
        run.go(until_ms)
        if run.store.status("default").in_force_version >= version:
            break
    else:
        return None
    in_force_ms = run.now_ms
    run.go(in_force_ms + 1_000)
    if not any(process.alive and process.agent._config_version == version for process in run.processes):
        return None  # nobody was told of it yet, so nobody can tell it
    run.store.restart()
    run.go()
    after = ((at_ms * NS_PER_MS, cost) for at_ms, cost in run.dispatched if at_ms >= in_force_ms + 1_000)
    return highest(after)


@pytest.mark.parametrize(("agent", "keeps"), [(LeaseAgent, True), (Mute, False)], ids=["as it is", "mute"])
def test_a_lowered_capacity_holds_over_a_restart_that_forgets_it(agent: type[LeaseAgent], keeps: bool) -> None:
    most = {seed: largest_second(seed, agent) for seed in range(SEEDS)}
    seen = [units for units in most.values() if units is not None]
    assert len(seen) > SEEDS / 2
    over = {seed: units for seed, units in most.items() if units is not None and units > LOW}
    assert (not over) == keeps, over
    assert max(seen) > LOW / 2, "it is used at all"
