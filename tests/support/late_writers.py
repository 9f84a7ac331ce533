"""Changelogs of one partition with late writers among the owner's groups, and what a restore makes of them.

A *late writer* is a former owner that slept: it has the state of the moment it fell asleep, cuts the log from there
into other chunks, and writes its groups when others have long gone on. Per key the value of the highest source offset
counts (streams.md 5). So whatever another cut of the log would have written must be among the owner's writes as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from headrace_core.stage import Emission, Record, Stage
from headrace_core.state import MemoryState, Overlay

Written = tuple[bytes, bytes | None, int]
"""Key, value (None: a tombstone) and source offset of a record of the changelog."""
Group = list[Written]
"""What one chunk appends; the last record is its marker."""
MARKER = b"\xff\xffmarker"


def ignore(_: Emission) -> None:
    """For chunks whose outputs nobody looks at."""


class Writer:
    """One that applies chunks: its state, and the groups that they append."""

    def __init__(self, stage: Stage, state: MemoryState | None = None) -> None:
        self.stage = stage
        self.state = state or MemoryState()

    def chunk(self, records: Iterable[Record], emit: Callable[[Emission], None] = ignore) -> Group:
        """Apply one chunk; returns its group."""
        overlay = Overlay(self.state)
        last = -1
        for record in records:
            self.stage.apply(overlay, record, emit)
            last = record.offset
        self.state.commit(overlay.mutations)
        primary = [(k, v, last) for k, v in overlay.mutations.items() if k[0] in self.stage.primary]
        return [*primary, (MARKER, b"{}", last)]


def cut(dice: random.Random, log: Sequence[Record], most: int) -> list[Sequence[Record]]:
    """The log in chunks of 1 to `most` records."""
    found, at = list[Sequence[Record]](), 0
    while at < len(log):
        size = dice.randint(1, most)
        found.append(log[at : at + size])
        at += size
    return found


def changelog(dice: random.Random, make: Callable[[], Stage], log: Sequence[Record], most: int) -> list[Group]:
    """The owner's groups, in chunks of at most `most`, with those of late writers among and after them."""
    owner, groups, late = Writer(make()), list[Group](), list[list[Group]]()
    for chunk in cut(dice, log, most):
        if dice.random() < 0.3:  # a copy falls asleep here; it awakes with up to two chunks in its hands
            sleeper = Writer(make(), MemoryState(owner.state.snapshot()))
            ahead = [record for record in log if record.offset >= chunk[0].offset]
            late.append([sleeper.chunk(part) for part in cut(dice, ahead, most)[: dice.randint(1, 2)]])
        groups.append(owner.chunk(chunk))
        while late and dice.random() < 0.4:
            groups += late.pop(dice.randrange(len(late)))
    for each in late:
        groups += each
    return groups


def compacted(dice: random.Random, groups: Iterable[Group]) -> list[Written]:
    """The cleaner took records that have a newer one of their key, in a head of the log without late writers."""
    log, ordered, source = [item for group in groups for item in group], 0, -1
    while ordered < len(log) and log[ordered][2] >= source:
        source = log[ordered][2]
        ordered += 1
    head = dice.randint(0, ordered)
    newest = {item[0]: at for at, item in enumerate(log[:head])}
    return [item for at, item in enumerate(log) if at >= head or newest[item[0]] == at]


def restored(stage: Stage, log: Iterable[Written]) -> MemoryState:
    """What a restore makes of a changelog: per key the value of the highest source, then derived keys anew."""
    newest: dict[bytes, tuple[int, bytes | None]] = {}
    for key, value, source in log:
        if key != MARKER and (key not in newest or source >= newest[key][0]):
            newest[key] = source, value
    state = MemoryState({key: value for key, (_, value) in newest.items() if value is not None})
    for key, value in state.snapshot().items():
        stage.derive(state, key, value)
    return state
