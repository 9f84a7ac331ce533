"""What a chunk writes does not depend on where the log was cut (streams.md 5).

A late writer, an owner that does not know yet that it is none, has the state of some offset and cuts the log from there
at other places; its groups stand in the changelog among the new owner's. A recovery keeps the value of the highest
source offset of each key. So whatever any cut writes, the owner's chunk over the same records must write too, be it as
deleted: a key that comes and goes within the owner's chunk, and that a late writer's shorter chunk has put, would stay
as a ghost. That holds if the keys that a chunk writes are those that its records write one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from headrace_core.stage import Record, Stage
from headrace_core.state import MemoryState, Overlay

MOST = 30
"""Records of a chunk."""
Writes = dict[bytes, bytes | None]
Newest = dict[bytes, tuple[int, bytes | None]]
Make = Callable[[], Stage]


def cut(dice: random.Random, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """The records in chunks of any size."""
    at = 0
    while at < len(records):
        size = dice.randint(1, MOST)
        yield records[at : at + size]
        at += size


class Writer:
    """Applies chunks to its own state. `leaves_out`: a family of which it does not write what comes and goes."""

    def __init__(self, stage: Stage, state: MemoryState, leaves_out: int | None = None) -> None:
        self.stage = stage
        self.state = state
        self.gone: set[int] = set()
        """Families of which something came and went within a chunk."""
        self._leaves_out = leaves_out

    def chunk(self, records: Sequence[Record]) -> Writes:
        """Apply one chunk; returns what it writes to the changelog."""
        overlay = Overlay(self.state)
        for record in records:
            self.stage.apply(overlay, record, lambda _: None)
        writes = self.primary(overlay.mutations)
        ghosts = {key for key, value in writes.items() if value is None and self.state.get(key) is None}
        self.gone |= {key[0] for key in ghosts}
        self.state.commit(overlay.mutations)
        return {key: value for key, value in writes.items() if key not in ghosts or key[0] != self._leaves_out}

    def primary(self, items: Writes) -> Writes:
        """Those that go to the changelog."""
        return {key: value for key, value in items.items() if key[0] in self.stage.primary}


def check_keys(make: Make, records: Sequence[Record], seed: int, leaves_out: int | None = None) -> set[int]:
    """A chunk writes what its records write one by one, with the last value. Returns the families seen to go."""
    owner, singly = Writer(make(), MemoryState(), leaves_out), Writer(make(), MemoryState())
    for chunk in cut(random.Random(seed), records):
        apart: Writes = {}
        for record in chunk:
            apart |= singly.chunk([record])
        assert owner.chunk(chunk) == apart
    assert owner.state.snapshot() == singly.state.snapshot()
    return owner.gone


def check_late_writers(make: Make, records: Sequence[Record], seed: int, leaves_out: int | None = None) -> set[int]:
    """Whatever late writers append and where, after each chunk a recovery finds the owner's state.

    Returns as `check_keys`. The offsets of `records` begin at 0.
    """
    dice, owner = random.Random(seed), Writer(make(), MemoryState(), leaves_out)
    newest, late = Newest(), list[tuple[int, Writes]]()
    for chunk in cut(dice, records):
        first, last = chunk[0].offset, chunk[-1].offset
        sleeper = Writer(make(), MemoryState(owner.state.snapshot()))
        for again in cut(dice, records[first : first + dice.randint(1, MOST + 10)]):
            late.append((again[-1].offset, sleeper.chunk(again)))
        groups = [(last, owner.chunk(chunk)), *(group for group in late if group[0] <= last)]
        late = [group for group in late if group[0] > last]
        dice.shuffle(groups)
        for source, writes in groups:
            recover(newest, source, writes)
        found = {key: value for key, (_, value) in newest.items() if value is not None}
        assert found == owner.primary(dict(owner.state.snapshot()))
    return owner.gone


def recover(newest: Newest, source: int, writes: Writes) -> None:
    """Read one group of the changelog: of each key the value of the highest source offset stays."""
    for key, value in writes.items():
        if key not in newest or source >= newest[key][0]:
            newest[key] = source, value


CHECKS = (check_keys, check_late_writers)
