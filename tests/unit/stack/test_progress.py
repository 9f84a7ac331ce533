"""What is seen of a run while it lasts: each stage with how much so far and per second."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from headrace import evidence, progress
from headrace.endpoints import WRITER
from headrace.evidence import Ends, Mark, Written
from headrace.progress import Progress
from tests.unit.stack.test_settling import AT


class Offsets:
    """The ends of the topics, as the test sets them."""

    def __init__(self) -> None:
        self.now: Ends = {("raw", 0): 100, ("routed", 0): 90, ("batches", 0): 10}

    def ends(self) -> Ends:
        return dict(self.now)


class Stage:
    """A progress on a clock and counts of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, archived: Written | None = None) -> None:
        self.seconds, self.rows = 1000.0, 50
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(evidence, "stored", lambda _, job=WRITER: Written({}, self.rows if job == WRITER else 5))
        self.offsets, self.out = Offsets(), io.StringIO()
        self.console = Console(file=self.out, width=120)
        given: Any = self.offsets
        self.progress = Progress(AT, Mark(ends=self.offsets.ends(), rows=50, archived=archived), self.console, given)

    def go_on(self, seconds: float) -> None:
        """So much later 20 more messages a second are in raw, and 10 rows a second in the store."""
        self.seconds += seconds
        self.offsets.now["raw", 0] += int(20 * seconds)
        self.rows += int(10 * seconds)
        self.progress.published += int(20 * seconds)
        self.progress.turn()


def test_without_a_terminal_a_line_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    for _ in range(12):
        stage.go_on(0.5)
    lines = stage.out.getvalue().splitlines()
    assert [line.split(" s ")[0].strip() for line in lines] == ["0", "6"]
    assert lines[1].endswith("publishing: published 110 (20/s), raw 110 (20/s), routed 0 (0/s), batches 0 (0/s), "
                             "rows 55 (10/s)")  # fmt: skip


def test_on_a_terminal_a_table_with_a_line_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    live = Live(console=stage.console, auto_refresh=False)
    stage.progress.live(live)
    for _ in range(4):
        stage.go_on(1)
    stage.progress.phase = "draining"
    stage.go_on(1)
    stage.console.print(live.renderable)
    said = stage.out.getvalue()
    assert "draining, 5 s" in said
    rows = [line.split()[:3] for line in said.splitlines()[2:]]
    assert rows == [["published", "100", "20"], ["raw", "100", "20"], ["routed", "0", "0"], ["batches", "0", "0"],
                    ["rows", "50", "10"]]  # fmt: skip
    assert f"at most {AT.capacity_per_s} per second" in said


def test_a_second_job_has_a_stage_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, archived=Written({}, 2))
    stage.go_on(1)
    assert stage.out.getvalue().strip().endswith("rows 10 (0/s), archived 3 (0/s)")
