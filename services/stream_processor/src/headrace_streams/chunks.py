"""Chunks, and making one of those that wait (`streams.md` 1).

A chunk waits for two acknowledgements, however small it is. Under light load the consumer hands over a few records at a
time; while the ones before wait, more of them gather. Whoever applied them one by one would wait for each in turn, and
an acknowledgement that takes long once would be paid again by all that came meanwhile. So those that wait and go on
from each other become one. How a log is cut into chunks changes nothing but when its outputs appear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace_core.stage import Record


class Chunk(NamedTuple):
    """Records of one partition as the consumer got them, and what to call when they are done with."""

    records: Sequence[Record]
    ack: Callable[[], None]


def take(waiting: deque[Chunk], most: int) -> Chunk:
    """The first chunk, with those behind it that begin where it ends, up to `most` records in sum. There is one."""
    taken = [waiting.popleft()]
    count = len(taken[0].records)
    while waiting and _goes_on(taken[-1], waiting[0]) and count + len(waiting[0].records) <= most:
        taken.append(waiting.popleft())
        count += len(taken[-1].records)
    return taken[0] if len(taken) == 1 else _joined(taken)


def _goes_on(chunk: Chunk, after: Chunk) -> bool:
    return bool(chunk.records and after.records) and after.records[0].offset == chunk.records[-1].offset + 1


def _joined(taken: Sequence[Chunk]) -> Chunk:
    def ack() -> None:
        for chunk in taken:
            chunk.ack()

    return Chunk([record for chunk in taken for record in chunk.records], ack)
