"""When Python looks for cycles: by the clock, not by the number of records (docs/bench/streams.md).

A chunk of 5,000 records is some 50,000 tuples that live until it is durable and hold no cycle; reference counts free
them all. With Python's default thresholds the collector walks over them again and again, young ones after every 700
allocations, all after every quarter that the heap has grown: a third of the processor time of a chunk. So what is there
at the start is frozen, and the rest is looked at every 10 s, which takes as long as the chunks under way are large; the
loop stands still meanwhile. No chunk may leave a cycle behind (`Bounded.release`): 200,000 objects took 0.3 s.
A stage that makes cycles with every record is collected sooner: a pass comes after `YOUNG` allocations, less what was
freed, which is more than the chunks under way of four partitions need.
"""

from __future__ import annotations

import asyncio
import gc

from headrace_streams import allocator

YOUNG = 1_000_000
MIDDLE, OLD = 2, 2
EVERY_S = 10.0


async def run() -> None:
    """Until cancelled: a full pass every `EVERY_S`. Begin when everything is imported and before there is work."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    while True:
        await asyncio.sleep(EVERY_S)
        gc.collect()
        await asyncio.to_thread(allocator.trim)
