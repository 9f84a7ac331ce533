"""What a chunk of batching or of a timeline writes does not depend on where the log was cut (tests/support/cuts.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from headrace_core.batching.stage import BatchingStage
from headrace_core.stage import Record
from headrace_core.timeline.stage import TimelineStage
from tests.model import test_batching_simulation as batching
from tests.model import test_timeline_simulation as timeline
from tests.support.cuts import CHECKS, Make

Check = Callable[[Make, Sequence[Record], int], set[int]]
STAGES = {
    "batching": (lambda: BatchingStage(batching.CONFIG), batching.log),
    "timeline": (lambda: TimelineStage(timeline.SETTINGS), timeline.log),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("make", "log"), STAGES.values(), ids=STAGES)
def test_late_writers_with_other_cuts_leave_no_ghost(
    check: Check, make: Make, log: Callable[[int, int], Iterator[Record]]
) -> None:
    for seed in range(15):
        check(make, list(log(seed, 150)), seed)
