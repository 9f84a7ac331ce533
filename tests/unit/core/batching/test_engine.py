"""Settings, limits and extremes of the batcher that the vectors leave out (batching.md 3, 6, 7)."""

from __future__ import annotations

import pytest

from headrace_core.batching.config import HIGHEST, BatchingConfig
from headrace_core.batching.engine import Batcher, Output
from headrace_core.batching.messages import Batch, Message, Reason, Rejected
from headrace_core.state import MemoryState


def take(state: MemoryState, config: BatchingConfig, type_: str, event: int, receipt: int) -> list[Output]:
    return Batcher(state, config).message(Message("s", type_, event, b"12345"), receipt)


def flushed(state: MemoryState, config: BatchingConfig, receipt: int) -> list[list[str]]:
    batches = Batcher(state, config).flush(receipt)
    return [[member.type for member in batch.members] for batch in batches if isinstance(batch, Batch)]


def test_a_batch_is_full_for_the_message_that_would_lift_it_above_its_bytes_and_not_before() -> None:
    state, config = MemoryState(), BatchingConfig(max_batch_bytes=10)
    for type_, event in (("a", 1), ("b", 2), ("c", 3)):
        take(state, config, type_, event, 10)
    assert flushed(state, config, 20) == [["a", "b"], ["c"]]


def test_an_opening_message_is_taken_whatever_its_size() -> None:
    state, config = MemoryState(), BatchingConfig(max_batch_bytes=1)
    assert take(state, config, "a", 1, 10) == []
    assert flushed(state, config, 20) == [["a"]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BatchingConfig(window=50), BatchingConfig(window=0)),
        (BatchingConfig(max_members=2), BatchingConfig(max_members=1)),
        (BatchingConfig(max_batch_bytes=10), BatchingConfig(max_batch_bytes=1)),
    ],
)
def test_a_changed_setting_does_not_reach_a_batch_that_is_open(before: BatchingConfig, after: BatchingConfig) -> None:
    state = MemoryState()
    take(state, before, "a", 1, 10)
    take(state, after, "b", 2, 11)
    assert flushed(state, after, 20) == [["a", "b"]]


def test_a_batch_keeps_the_timeout_of_its_opening() -> None:
    state = MemoryState()
    take(state, BatchingConfig(timeout=100), "a", 1, 10)
    later = Batcher(state, BatchingConfig(timeout=5))
    assert (later.tick(109), later.next_due()) == ([], 110)


@pytest.mark.parametrize(("before", "after", "known"), [(1000, 0, True), (0, 1000, False)])
def test_identities_are_remembered_by_the_horizon_of_the_opening(before: int, after: int, known: bool) -> None:
    state = MemoryState()
    take(state, BatchingConfig(timeout=10, dedup_horizon=before), "a", 1, 10)
    changed = BatchingConfig(timeout=10, dedup_horizon=after)
    again = take(state, changed, "a", 1, 30)
    assert (Rejected(Reason.DUPLICATE) in again) is known


@pytest.mark.parametrize("event", [-(2**63), 2**63 - 1, -(2**64), 2**64])
def test_an_event_time_beyond_the_keys_is_not_readable(event: int) -> None:
    assert take(MemoryState(), BatchingConfig(), "a", event, 10) == [Rejected(Reason.INVALID)]


@pytest.mark.parametrize("event", [-(2**62), 2**62 - 1])
def test_the_largest_settings_and_times_still_make_a_batch(event: int) -> None:
    config = BatchingConfig(window=HIGHEST, timeout=HIGHEST, max_members=HIGHEST, max_batch_bytes=HIGHEST)
    state, now = MemoryState(), 10**18 - 1
    assert take(state, config, "a", event, now) == []
    assert flushed(state, config, now) == [["a"]]
    assert take(state, config, "a", event, now) == [Rejected(Reason.DUPLICATE)]
