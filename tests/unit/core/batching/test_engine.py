"""Settings, limits and extremes of the batcher that the vectors leave out (batching.md 3, 6, 7).

What `make mutants` still reports of the engine, its index of deadlines, its keys, windows and payloads is the same
store in other words (letters of families, widths of numbers, values that nobody reads, the end of a scan further off),
the same answer at another price (a payload read whole that need not be; a count of brackets or colons that only decides
whether to look closer; a page of the index read in other steps), a comparison of items that are never equal, or another
spelling of the same (`UTF-8`, `0xFF`).
"""

from __future__ import annotations

import pytest

from headrace_core.batching.config import HIGHEST, BatchingConfig
from headrace_core.batching.engine import Batcher, Output, derive
from headrace_core.batching.keys import FORGET, PAGE, PRIMARY, open_key, timed_key
from headrace_core.batching.messages import Batch, Cause, Message, Reason, Rejected
from headrace_core.batching.windows import FEW
from headrace_core.state import MemoryState, Overlay


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


def test_a_batch_of_several_pages_is_full_at_its_number_of_members_and_not_before() -> None:
    state, config = MemoryState(), BatchingConfig(max_members=2 * PAGE + 1)
    for number in range(2 * PAGE + 2):
        take(state, config, f"t{number}", number, 10)
    assert [len(types) for types in flushed(state, config, 20)] == [2 * PAGE + 1, 1]


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


def test_what_is_due_a_millisecond_later_stays_open() -> None:
    state, config = MemoryState(), BatchingConfig(window=0, timeout=100)
    take(state, config, "a", 1, 10)
    take(state, config, "a", 2, 11)
    batcher = Batcher(state, config)
    assert [len(batcher.tick(at)) for at in (109, 110, 111)] == [0, 1, 1]
    assert batcher.next_due() is None


@pytest.mark.parametrize("count", [1, FEW])
def test_a_batch_that_is_opened_and_closed_within_a_chunk_is_written_as_deleted(count: int) -> None:
    """Another writer may have cut the log in between; its record of the batch must not be the newest (streams.md 5)."""
    overlay = Overlay(MemoryState())
    batcher = Batcher(overlay, BatchingConfig(window=0, timeout=100))
    for event in range(count):
        batcher.message(Message("s", "a", event, b"1"), 10)
    assert len(batcher.tick(110)) == count
    left = [key[:1] for key, value in sorted(overlay.mutations.items()) if value is not None]
    assert left == [b"c", *[b"x"] * count, *[b"\x93"] * count]
    assert [key for key, value in overlay.mutations.items() if value is None] == list(map(open_key, range(count)))


def test_what_is_remembered_and_forgotten_within_a_chunk_is_written_as_deleted() -> None:
    overlay = Overlay(MemoryState())
    batcher = Batcher(overlay, BatchingConfig(timeout=10, dedup_horizon=20))
    for event, receipt in ((1, 100), (2, 200)):
        batcher.message(Message("s", "a", event, b"1"), receipt)
    primary = {key: value for key, value in overlay.mutations.items() if key[0] in PRIMARY}
    assert [key for key, value in primary.items() if value is None] == [open_key(0), timed_key(FORGET, 130, 0)]
    assert [key[:1] for key, value in primary.items() if value is not None] == [b"c", b"b"]


@pytest.mark.parametrize("settled", [1, 7, 1000])
def test_a_batch_of_many_pages_still_knows_its_types_identities_and_order(settled: int) -> None:
    """Whether each chunk is one message or all; derived keys are those that a restore makes."""
    config, base, types = BatchingConfig(window=100, timeout=1000), MemoryState(), [f"t{n:02d}" for n in range(50)]
    messages = [Message("s", type_, 100 + at % 3, b"1") for at, type_ in enumerate(types)]
    for at in range(0, len(messages), settled):
        overlay = Overlay(base)
        batcher = Batcher(overlay, config)
        assert [batcher.message(message, 10) for message in messages[at : at + settled]] == [[]] * min(settled, 50 - at)
        base.commit(overlay.mutations)
    restored = MemoryState({key: value for key, value in base.snapshot().items() if key[0] in PRIMARY})
    for key, value in restored.snapshot().items():
        derive(restored, key, value)
    assert restored.snapshot() == base.snapshot()
    assert all(Batcher(base, config).message(message, 10) == [Rejected(Reason.DUPLICATE)] for message in messages)
    again = Batcher(base, config)
    again.message(Message("s", "t03", 150, b"1"), 10)
    assert again.opened[Cause.CONFLICT] == 1
    expected = [message.type for message in sorted(messages, key=lambda message: message.event_ms)]
    assert flushed(base, config, 20) == [expected, ["t03"]]
    assert [key[:1] for key in base.snapshot()] == [b"c", b"x", b"x", *[b"\x93"] * 51]


def test_many_deadlines_and_ends_of_memory_are_taken_in_order_over_any_cut_into_chunks() -> None:
    """The indexes are read ahead in pages; batches opened meanwhile, also with other deadlines, come in their place."""
    configs = [BatchingConfig(window=0, timeout=timeout, dedup_horizon=100) for timeout in (700, 50, 300)]
    outputs = []
    for chunk in (1, 4, 400, 2000):
        base, out = MemoryState(), list[Output]()
        for at in range(0, 2000, chunk):
            overlay = Overlay(base)
            for number in range(at, at + chunk):
                if number == at or number % 400 == 0:
                    overlay.mutations  # noqa: B018 - settles the batcher before the next one reads
                    batcher = Batcher(overlay, configs[number // 400 % 3])
                out += batcher.message(Message(f"s{number % 7}", "", number, b"1"), number)
            base.commit(overlay.mutations)
        last = Batcher(base, configs[0])
        out += last.tick(10_000) + last.tick(20_000)
        assert list(base.snapshot()) == [b"c"]
        outputs.append(out)
    assert outputs[0] == outputs[1] == outputs[2] == outputs[3]
    closed = [batch.closed_ms for batch in outputs[0] if isinstance(batch, Batch)]
    assert len(closed) == 2000
    assert closed == sorted(closed)


def test_a_batcher_counts_on_over_the_records_of_a_chunk() -> None:
    overlay = Overlay(MemoryState())
    batcher = Batcher(overlay, BatchingConfig(window=0, timeout=5, dedup_horizon=0))
    for event, receipt in ((12, 10), (13, 9), (10, 8)):
        batcher.message(Message("s", "a", event, b"1"), receipt)
    batcher.message(Message("s", "a", 1, b"1"), 16)
    batcher.tick(30)
    batcher.tick(31)
    assert (batcher.opened, batcher.ahead) == ({Cause.NEW: 4, Cause.CONFLICT: 0, Cause.FULL: 0}, 2)
    assert (batcher.raised, batcher.forgotten) == (2, 4)
