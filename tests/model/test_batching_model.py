"""The batcher beside a model that keeps every message and looks at all of them each time (batching.md 6 to 8, 11)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.engine import Batcher, derive
from headrace_core.batching.keys import PRIMARY
from headrace_core.batching.messages import Batch, Message, Rejected
from headrace_core.state import MemoryState

BASE = 1_700_000_000_000


@dataclass
class Slow:
    """One batch of the model."""

    source: str
    start: int
    until: int
    opened: int
    deadline: int
    rank: int
    members: list[tuple[int, int, str, int]] = field(default_factory=list)  # event time, arrival, type, received


class Model:
    def __init__(self, config: BatchingConfig) -> None:
        self.config, self.clock, self.count = config, -(10**18), 0
        self.open: list[Slow] = []
        self.closed_at: dict[tuple[str, str, int], int] = {}

    def advance(self, receipt: int) -> list[Any]:
        self.clock = max(self.clock, receipt)
        due = sorted((b for b in self.open if b.deadline <= self.clock), key=lambda b: (b.deadline, b.rank))
        return [self.close(b, b.deadline, "timeout") for b in due]

    def close(self, batch: Slow, at: int, how: str) -> Any:
        self.open.remove(batch)
        for t, _, type_, _ in batch.members:
            self.closed_at[batch.source, type_, t] = at
        opening = min(batch.members, key=lambda m: m[1])
        text = json.dumps(
            [batch.source, opening[2], batch.start, batch.opened], separators=(",", ":"), ensure_ascii=False
        )
        members = [(type_, t, received) for t, _, type_, received in sorted(batch.members)]
        id_ = hashlib.sha256(text.encode()).hexdigest()[:32]
        return (id_, batch.source, batch.start, batch.opened, at, how, members)

    def flush(self, receipt: int) -> list[Any]:
        out = self.advance(receipt)
        left = sorted(self.open, key=lambda b: (b.deadline, b.rank))
        return out + [self.close(b, self.clock, "flush") for b in left]

    def message(self, source: str, type_: str, t: int, receipt: int) -> list[Any]:
        out = self.advance(receipt)
        for batch in self.open:
            if batch.source == source and any(m[0] == t and m[2] == type_ for m in batch.members):
                return [*out, "duplicate"]
        closed = self.closed_at.get((source, type_, t))
        if closed is not None and self.clock <= closed + self.config.horizon:
            return [*out, "duplicate"]
        skew, lateness = self.config.max_future_skew, self.config.max_lateness
        if skew is not None and t > self.clock + skew:
            return [*out, "future"]
        if lateness is not None and t < self.clock - lateness:
            return [*out, "late"]
        self.count += 1
        member = (t, self.count, type_, self.clock)
        covering = [b for b in self.open if b.source == source and b.start <= t < b.until]
        assert len(covering) <= 1, "windows overlap"
        for batch in covering:
            full = len(batch.members) >= self.config.max_members
            if not full and all(m[2] != type_ for m in batch.members):
                batch.members.append(member)
                return out
            batch.until = t
        above = [b.start for b in self.open if b.source == source and b.start > t]
        until = min([t + self.config.window + 1, *above])
        self.open.append(Slow(source, t, until, self.clock, self.clock + self.config.timeout, self.count, [member]))
        return out


def seen(outputs: list[Batch | Rejected]) -> list[Any]:
    return [
        (
            o.id,
            o.source,
            o.from_ms,
            o.opened_ms,
            o.closed_ms,
            str(o.close),
            [(m.type, m.event_ms, m.received_ms) for m in o.members],
        )
        if isinstance(o, Batch)
        else str(o.reason)
        for o in outputs
    ]


def restored(state: MemoryState) -> MemoryState:
    fresh = MemoryState({key: value for key, value in state.snapshot().items() if key[0] in PRIMARY})
    for key, value in list(fresh.snapshot().items()):
        derive(fresh, key, value)
    return fresh


CONFIG = st.builds(
    BatchingConfig,
    window=st.sampled_from([0, 1, 10, 50]),
    timeout=st.sampled_from([1, 20]),
    dedup_horizon=st.sampled_from([None, 0, 1, 30]),
    max_future_skew=st.sampled_from([None, 0, 20]),
    max_lateness=st.sampled_from([None, 0, 40]),
    max_members=st.sampled_from([1, 2, 1000]),
)
STEP = st.tuples(
    st.sampled_from(["message"] * 8 + ["tick", "flush", "unreadable", "restore"]),
    st.sampled_from(["a", "a", "ä\U0001f600"]),
    st.sampled_from(["", "t", "u"]),
    st.sampled_from([-50, -20, -1, 0, 1, 10, 11, 20, 21, 21, 21]),
    st.sampled_from([-5, 0, 0, 1, 1, 9, 20, 30, 100]),
)


@settings(max_examples=500, deadline=None)
@given(CONFIG, st.lists(STEP, max_size=60))
def test_it_agrees_with_the_model_whatever_comes(
    config: BatchingConfig, steps: list[tuple[str, str, str, int, int]]
) -> None:
    state, model, receipt = MemoryState(), Model(config), BASE
    batched = 0
    ids: set[str] = set()
    for do, source, type_, ahead, passed in steps:
        receipt += passed
        batcher = Batcher(state, config)
        if do == "message":
            event = BASE + 20 if ahead == 21 else receipt + ahead  # a fixed time comes again and again
            outputs = batcher.message(Message(source, type_, event, b"1"), receipt)
            expected = model.message(source, type_, event, receipt)
        elif do == "flush":
            outputs, expected = batcher.flush(receipt), model.flush(receipt)
        elif do == "unreadable":
            outputs, expected = batcher.unreadable(receipt), [*model.advance(receipt), "invalid"]
        elif do == "tick":
            outputs, expected = batcher.tick(receipt), model.advance(receipt)
        else:
            fresh = restored(state)
            assert fresh.snapshot() == state.snapshot()
            state = fresh
            continue
        assert seen(outputs) == expected
        batches = [output for output in outputs if isinstance(output, Batch)]
        assert all(m.event_ms <= b.from_ms + config.window for b in batches for m in b.members)
        batched += sum(len(batch.members) for batch in batches)
        assert ids.isdisjoint(batch.id for batch in batches)
        ids.update(batch.id for batch in batches)
        assert Batcher(state, config).next_due() == min((b.deadline for b in model.open), default=None)
    left = seen(Batcher(state, config).flush(receipt))
    assert left == model.flush(receipt)
    assert batched + sum(len(batch[6]) for batch in left if not isinstance(batch, str)) == model.count
