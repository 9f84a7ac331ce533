"""A changelog with late writers restores to the owner's state (streams.md 5), however each of them cut the log.

Batches, pages of members and memories of closed batches that come and go within a chunk of the owner's are the trap: a
late writer that cut the log in between has put them, and only a tombstone of the owner's outdoes that.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.keys import PRIMARY
from headrace_core.batching.stage import BatchingStage
from headrace_core.stage import Record
from headrace_core.state import MemoryState
from tests.support.late_writers import MARKER, Writer, changelog, compacted, restored

CONFIG = BatchingConfig(window=40, timeout=60, dedup_horizon=90, max_members=40)


def stage() -> BatchingStage:
    return BatchingStage(CONFIG)


def log(dice: random.Random, count: int) -> Iterator[Record]:
    """Bursts that fill pages, pauses in which batches close and are forgotten, repeats, conflicts, ticks, flushes."""
    at, step = 1_700_000_000_000, 0
    for offset in range(count):
        if dice.random() < 0.1:
            step = dice.choice([0, 0, 1, 7, 30, 120])
        at += step
        kind = dice.choices([b"data", b"tick", b"flush"], [40, 3, 1])[0]
        event = at + dice.choice([-50, -1, 20] + [0] * 20)
        fields = {"kind": kind, "entity": b"te/device/d%d//" % dice.choice([0] * 9 + [1]),
                  "channel": b"m/t%d" % dice.choice([offset % 40] * 9 + [0]),
                  "id": b"registration:0:%d:0" % (offset - dice.choice([0] * 9 + [3]))}  # fmt: skip
        yield Record(0, offset, at, b"te", b'{"time":%d.%03d}' % divmod(event, 1000), tuple(fields.items()))


def states(records: list[Record]) -> dict[int, dict[bytes, bytes]]:
    """By offset: the state after it, record by record."""
    state, found, alone = MemoryState(), {}, stage()
    for record in records:
        alone.apply(state, record, lambda _: None)
        found[record.offset] = state.snapshot()
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 6, 20, 70]))
def test_any_beginning_of_the_changelog_restores_to_the_state_of_its_highest_source(seed: int, most: int) -> None:
    dice = random.Random(seed)
    records = list(log(dice, 120))
    after, groups = states(records), changelog(dice, stage, records, most)
    for end in {len(groups), *(dice.randint(1, len(groups)) for _ in range(8))}:
        written = compacted(dice, groups[:end])
        highest = max(group[-1][2] for group in groups[:end])
        assert restored(stage(), written).snapshot() == after[highest]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_what_any_cut_of_a_chunk_would_write_is_among_its_writes(seed: int) -> None:
    """The same said of one chunk alone: it writes each primary key that it would write cut into single records."""
    records = list(log(random.Random(seed), 150))
    for start in (0, 75):
        before = Writer(stage())
        before.chunk(records[:start])
        whole, single = (Writer(stage(), MemoryState(before.state.snapshot())) for _ in range(2))
        written = {key: value for key, value, _ in whole.chunk(records[start:])}
        keys = {key for record in records[start:] for key, _, _ in single.chunk([record])}
        assert keys <= written.keys()
        keys.remove(MARKER)
        assert {key: value for key in keys if (value := written[key]) is not None} == {
            key: value for key, value in single.state.snapshot().items() if key[0] in PRIMARY + b"rn" and key in keys
        }


def test_the_logs_have_what_comes_and_goes_of_each_family() -> None:
    """Else the tests above would say nothing of it."""
    gone = set[bytes]()
    for seed in range(10):
        records = list(log(random.Random(seed), 150))
        whole, single = Writer(stage()), Writer(stage())
        left = {key for key, value, _ in whole.chunk(records) if value is not None}
        put = {key for record in records for key, value, _ in single.chunk([record]) if value is not None}
        gone |= {key[:1] for key in put - left}
    assert gone == {b"b", b"m", b"x"}
