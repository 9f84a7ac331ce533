"""Real processes that share a capacity, what is done to them, and the independent check of what they spent.

The check knows nothing of leases: it adds up the costs of each second of the machine's one monotonic clock.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec

from headrace.windows import highest
from tests.support.patience import PATIENCE
from tests.support.spender import LIMIT, Plan

APART_NS = 200_000_000
"""Longer between check and call: the process did not run; reported apart (capacity.md 14, 17.2)."""


class Spenders:
    """The processes of one resource. `seed` decides what is done to them; `handover`: of the resource."""

    def __init__(self, folder: Path, store: str, token: str, seed: int, handover: str = "wait") -> None:
        self.folder, self.store, self.token, self.handover = folder, store, token, handover
        self.rng, self.made = Random(seed), 0
        self.running: list[subprocess.Popen[bytes]] = []
        self.stopped: dict[int, float] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, **plan: object) -> subprocess.Popen[bytes]:
        self.made += 1
        members = {"resource": self.folder.name, "out": str(self.folder / f"{self.made}.spent"), "seed": self.made}
        members["handover"] = self.handover
        whole = Plan(store=self.store, token=self.token, **{**members, **plan})  # type: ignore[arg-type]
        errors = (self.folder / f"{self.made}.err").open("wb")
        with errors:
            command = [sys.executable, "-m", "tests.support.spender", msgspec.json.encode(whole).decode()]
            process = subprocess.Popen(command, stderr=errors, stdout=subprocess.DEVNULL)
        self.running.append(process)
        return process

    def kill(self) -> None:
        """SIGKILL to one of them, and another one in its place."""
        victim = self.rng.choice(self.running)
        self._end(victim)
        self.start(wall_s=self.rng.choice((-3600, 0, 3600)))

    def stop_one(self) -> None:
        """SIGSTOP for 1 to 8 s to one that runs."""
        free = [process for process in self.running if process.pid not in self.stopped]
        if free:
            victim = self.rng.choice(free)
            victim.send_signal(signal.SIGSTOP)
            self.stopped[victim.pid] = time.monotonic() + self.rng.uniform(1, 8)

    def follow(self) -> None:
        """Let go on whose time is over. Raises AssertionError with the log of one that ended by itself."""
        now = time.monotonic()
        for process in self.running:
            if self.stopped.get(process.pid, now + 1) <= now:
                process.send_signal(signal.SIGCONT)
                del self.stopped[process.pid]
            assert process.poll() is None, b"".join(each.read_bytes() for each in self.folder.glob("*.err"))

    def until_spending(self, before: int = 0, seconds: float = 240) -> None:
        """Wait for the first dispatch after so many: on a loaded machine processes take long to start. Raises
        AssertionError."""
        deadline = time.monotonic() + seconds * PATIENCE
        while len(self.spent()) <= before:
            self.follow()
            assert time.monotonic() < deadline, "nothing was spent"
            time.sleep(0.1)

    def end(self) -> None:
        for process in list(self.running):
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self.running.remove(process)
        self.stopped.pop(process.pid, None)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def spent(self) -> list[tuple[int, int, int]]:
        """(checked ns, called ns, cost) of all, in order of the checks. A line that a kill cut short was not called."""
        lines = (line for each in self.folder.glob("*.spent") for line in each.read_text().splitlines(keepends=True))
        whole = (line.split() for line in lines if line.endswith("\n"))
        return sorted((int(checked), int(called), int(cost)) for checked, called, cost in whole)


def judged(spent: list[tuple[int, int, int]]) -> tuple[int, int, int]:
    """The largest window at the check; the largest at the call, without those that stood still between the two; and how
    many stood still."""
    calls = sorted((called, cost) for checked, called, cost in spent if called - checked <= APART_NS)
    return (
        highest((checked, cost) for checked, _, cost in spent),
        highest(calls),
        len(spent) - len(calls),
    )


def used(spent: list[tuple[int, int, int]], seconds: float) -> float:
    """The share of what may be spent in so many seconds."""
    return sum(cost for _, _, cost in spent) / (LIMIT * seconds)


def assert_never_over(spent: list[tuple[int, int, int]], seconds: float, least_use: float) -> None:
    """No second above the limit at the check; and the owners really spent."""
    at_check, at_call, apart = judged(spent)
    use = used(spent, seconds)
    print(f"largest second {at_check} at the check, {at_call} at the call, of {LIMIT}; {apart} apart; use {use:.0%}")
    assert at_check <= LIMIT
    assert use >= least_use
