"""When Python looks for cycles: seldom (`streams.md`, the figures of docs/bench/streams.md).

A chunk of 5,000 records is some 50,000 tuples that live until it is durable and hold no cycle; reference counts free
them all. With Python's default thresholds the collector walks over them again and again, young ones after every 700
allocations, all after every quarter that the heap has grown: a third of the processor time of a chunk. So what is there
at the start is frozen, and a pass comes only after as many allocations (less what was freed) as the chunks under way of
four partitions need. Cycles are still found, also those of a stage that makes some with every record.
"""

from __future__ import annotations

import gc

YOUNG = 200_000
MIDDLE = 10
OLD = 10


def tune() -> None:
    """Call once, when everything is imported and before there is work."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
