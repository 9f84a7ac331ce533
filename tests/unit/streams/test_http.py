"""What the page of metrics makes of a stage's numbers."""

from __future__ import annotations

from headrace_core.stage import Histogram
from headrace_streams.http import _buckets


def test_buckets_are_cumulative_in_seconds_and_end_with_all() -> None:
    found = Histogram((10, 500, 1_000), (2, 0, 3, 4), 9_500)
    assert _buckets(found, 1000) == ([("0.01", 2), ("0.5", 2), ("1.0", 5), ("+Inf", 9)], 9.5)
    assert _buckets(found, 1)[0][1] == ("500.0", 2)
