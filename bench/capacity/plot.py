"""The picture: four jobs share one resource; one is killed; target and achieved rate over time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import matplotlib

from bench.capacity.owners import largest
from bench.capacity.worker import CAPACITY, TOKEN
from bench.engines.measure import Figure
from headrace_capacity.coordinator import Coordinator

matplotlib.use("Agg")
import matplotlib.pyplot as plt

JOBS, KILL_AT_S, SECONDS = 4, 8.0, 22.0
BIN_NS = 1_000_000_000
"""A second: the window that the limit is about."""
Told = dict[str, list[tuple[int, int]]]


def picture(path: Path) -> list[Figure]:
    """Run it, draw it, and say what the largest second was."""
    told, began, killed = _run()
    _draw(path, told, began, killed)
    sent = sorted(event for job in told for event in job["sent"])
    return [
        Figure("four jobs, one killed: largest second of the capacity", largest(sent) / CAPACITY, "ratio", 1.0, False)
    ]


def _run() -> tuple[list[Told], int, int]:
    coordinator = Coordinator(TOKEN, cold=True).start()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(job) for job in range(JOBS)]
        began = time.monotonic_ns()
        jobs = [
            subprocess.Popen([sys.executable, "-m", "bench.capacity.worker", coordinator.address, str(file)])
            for file in files
        ]
        time.sleep(KILL_AT_S)
        jobs[0].kill()
        killed = time.monotonic_ns()
        time.sleep(SECONDS - KILL_AT_S)
        for job in jobs:
            job.kill()
            job.wait()
        coordinator.stop()
        return [_told(file) for file in files], began, killed


def _told(file: Path) -> Told:
    told: Told = defaultdict(list)
    for line in file.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            what, at, units = line.split()
            told[what].append((int(at), int(units)))
    return told


def _draw(path: Path, told: list[Told], began: int, killed: int) -> None:
    bins = int(SECONDS * 1e9 // BIN_NS)
    seconds = [(index + 0.5) * BIN_NS / 1e9 for index in range(bins)]
    figure, axes = plt.subplots(figsize=(8.5, 4.2), dpi=110)
    axes.stackplot(seconds, [_rates(job["sent"], began, bins) for job in told], alpha=0.55,
                   labels=[f"job {index + 1}, achieved" for index in range(JOBS)])  # fmt: skip
    held = [_mean(job["held"], began, bins) for job in told]
    axes.plot(
        seconds, [sum(values) for values in zip(*held, strict=True)], color="black", lw=1.2, label="target (granted)"
    )
    axes.axhline(CAPACITY, color="tab:red", lw=1, ls="--", label="shared capacity")
    axes.axvline((killed - began) / 1e9, color="grey", lw=1, ls=":", label="job 1 killed")
    axes.set_xlabel("s")
    axes.set_ylabel("units/s")
    axes.set_ylim(0, CAPACITY * 1.25)
    axes.set_title("Four jobs share a capacity; one is killed", fontsize=10)
    axes.legend(fontsize=7, ncols=2, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _rates(sent: list[tuple[int, int]], began: int, bins: int) -> list[float]:
    rates = [0.0] * bins
    for at, units in sent:
        index = (at - began) // BIN_NS
        if 0 <= index < bins:
            rates[index] += units * 1e9 / BIN_NS
    return rates


def _mean(held: list[tuple[int, int]], began: int, bins: int) -> list[float]:
    values: list[list[int]] = [[] for _ in range(bins)]
    for at, units in held:
        index = (at - began) // BIN_NS
        if 0 <= index < bins:
            values[index].append(units)
    return [sum(each) / len(each) if each else 0.0 for each in values]
