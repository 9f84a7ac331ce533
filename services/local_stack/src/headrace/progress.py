"""What is shown on stderr while a demo runs: one line a stage with its rate; without a terminal one line at times."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace import evidence
from headrace.endpoints import ARCHIVE, Endpoints
from headrace.evidence import Mark, Offsets

EVERY_S = 1.0
PLAIN_EVERY_S = 5.0
SMOOTH_S = 5.0
STAGES = ("published", "raw", "routed", "batches", "rows")
WORDS = {
    "published": "acknowledged by the MQTT broker",
    "raw": "records, ticks included",
    "routed": "records, ticks included",
    "batches": "closed by event time",
    "rows": "in the store",
    "archived": "by the second job, within the same capacity",
}


class Progress:
    """Counts since `before`. `published` is set by whoever publishes; `turn` may be called at any rate."""

    def __init__(self, at: Endpoints, before: Mark, console: Console, offsets: Offsets) -> None:
        self._at = at
        self._before = before
        self._console = console
        self._offsets = offsets
        self._live: Live | None = None
        self._history: list[tuple[float, dict[str, int]]] = []
        self._due = self._plain_due = 0.0
        self._began = time.monotonic()
        self._stages = STAGES if before.archived is None else (*STAGES, "archived")
        self.published = 0
        self.phase = "publishing"

    def turn(self) -> None:
        """Show what is new, if it is time."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + EVERY_S
        self._history.append((now, self._counts()))
        self._history = [entry for entry in self._history if entry[0] > now - SMOOTH_S - EVERY_S]
        if self._live is not None:
            self._live.update(self._table())
        elif now >= self._plain_due:
            self._plain_due = now + PLAIN_EVERY_S
            self._console.print(self._line(), highlight=False, soft_wrap=True)

    @property
    def rows(self) -> int:
        """Rows that the writer has stored, as of the last look."""
        return self._history[-1][1]["rows"] if self._history else 0

    def live(self, live: Live) -> None:
        """From now on show a table that is drawn again and again."""
        self._live = live

    def _counts(self) -> dict[str, int]:
        ends = Mark(ends=self._offsets.ends())
        counts = {topic: ends.records(topic) - self._before.records(topic) for topic in STAGES[1:4]}
        counts |= {"published": self.published, "rows": evidence.stored(self._at.database).rows - self._before.rows}
        if (archived := self._before.archived) is not None:
            counts["archived"] = evidence.stored(self._at.database, ARCHIVE).rows - archived.rows
        return counts

    def _rate(self, stage: str) -> float:
        (begin, first), (end, last) = self._history[0], self._history[-1]
        return (last[stage] - first[stage]) / (end - begin) if end > begin else 0.0

    def _line(self) -> str:
        counts = self._history[-1][1]
        shown = ", ".join(f"{stage} {counts[stage]} ({self._rate(stage):.0f}/s)" for stage in self._stages)
        return f"{time.monotonic() - self._began:3.0f} s {self.phase}: {shown}"

    def _table(self) -> Table:
        table = Table(title=f"{self.phase}, {time.monotonic() - self._began:.0f} s", title_justify="left", box=None)
        for name, justify in (("stage", "left"), ("so far", "right"), ("per second", "right"), ("", "left")):
            table.add_column(name, justify="right" if justify == "right" else "left")
        for stage in self._stages:
            words = f"at most {self._at.capacity_per_s} per second" if stage == "rows" else WORDS[stage]
            table.add_row(stage, str(self._history[-1][1][stage]), f"{self._rate(stage):.0f}", words)
        return table


@contextmanager
def shown(at: Endpoints, before: Mark) -> Iterator[Progress]:
    """A progress that is shown on stderr until the end of the block."""
    console = Console(stderr=True)
    with closing(Offsets(at)) as offsets:
        progress = Progress(at, before, console, offsets)
        if not console.is_terminal:
            yield progress
            return
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            progress.live(live)
            yield progress


def say(words: str) -> None:
    """One line on stderr."""
    print(words, file=sys.stderr, flush=True)
