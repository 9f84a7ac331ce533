"""A lane in stream mode: when times close, when the open batch leaves, what is late, what survives a crash."""

from __future__ import annotations

import pytest

from headrace_core.packing.lane import Lane, LaneState, Rows, Step
from headrace_core.packing.packer import UNTIMED
from headrace_core.packing.settings import PackingSettings

SETTINGS = PackingSettings(max=3, lateness_ms=100, linger_ms=1_000)
Arrived = list[tuple[str, int | None]]


def step(state: LaneState, rows: Arrived, now_ms: int, settings: PackingSettings = SETTINGS, **end: bool) -> Step:
    values = [f"{name}@{time}".encode() for name, time in rows]
    return Lane(settings).step(
        state, [name for name, _ in rows], [time for _, time in rows], values, now_ms=now_ms, **end
    )


def sent(result: Step) -> list[list[bytes]]:
    return [batch.values for batch in result.batches]


def test_a_time_closes_when_one_at_least_lateness_later_was_seen() -> None:
    before = step(LaneState(), [("a$x", 0), ("a$y", 99)], 5_000)
    assert (len(before.state.pending), len(before.state.open)) == (2, 0)
    after = step(before.state, [("a$x", 100)], 5_001)
    assert (after.state.pending.times, after.state.open.times) == ([99, 100], [0])
    assert sent(after) == []


def test_a_time_closes_linger_after_it_was_first_seen_and_takes_waiting_earlier_ones_with_it() -> None:
    first = step(LaneState(), [("a$x", 50)], 5_000)
    second = step(first.state, [("b$x", 20), ("b$x", 60), ("b$y", 50)], 5_900)
    assert second.due_ms == 6_000
    third = step(second.state, [], 6_000)
    assert sent(third) == [[b"a$x@50", b"b$x@20", b"b$y@50"]]
    assert third.state.pending.times == [60]
    assert third.counts.late == 0


def test_a_full_open_batch_is_sent_at_once() -> None:
    result = step(LaneState(), [("a$x", 0), ("b$x", 1), ("c$x", 2), ("d$x", 200)], 5_000)
    assert sent(result) == [[b"a$x@0", b"b$x@1", b"c$x@2"]]
    assert result.due_ms == 6_000


def test_the_open_batch_is_flushed_linger_after_it_was_begun() -> None:
    opened = step(LaneState(), [("a$x", 0), ("a$x", 500)], 5_000)
    kept = step(opened.state, [("b$x", 1)], 5_999)
    assert (sent(kept), kept.state.open.values) == ([], [b"a$x@0", b"b$x@1"])
    flushed = step(kept.state, [], 6_000)
    assert sent(flushed) == [[b"a$x@0", b"b$x@1", b"a$x@500"]]
    assert (len(flushed.state.open), flushed.due_ms) == (0, None)


def test_untimed_rows_are_closed_at_once_and_never_late() -> None:
    opened = step(LaneState(), [("a$x", 0), ("a$y", 0), ("a$z", 0)], 5_000, end=True)
    result = step(opened.state, [("b$x", None)], 5_001)
    assert result.state.open.times == [UNTIMED]
    assert (result.counts.untimed, result.counts.late) == (1, 0)


def test_a_row_older_than_what_was_sent_is_late_and_goes_into_the_next_batch() -> None:
    gone = step(LaneState(), [("a$x", 10)], 5_000, end=True)
    result = step(gone.state, [("b$x", 9), ("a$y", 10), ("b$x", 10)], 5_001, end=True)
    assert sent(result) == [[b"b$x@9", b"a$y@10", b"b$x@10"]]
    assert result.counts.late == 2, "b$x@10 is another group of the same time"


def test_a_row_whose_group_is_in_the_open_batch_is_late_only_without_room() -> None:
    opened = step(LaneState(), [("a$x", 0), ("a$y", 0), ("a$x", 500)], 5_000)
    assert opened.state.open.values == [b"a$x@0", b"a$y@0"]
    fits = step(opened.state, [("a$z", 0)], 5_001)
    assert (sent(fits), fits.counts.late) == ([[b"a$x@0", b"a$y@0", b"a$z@0"]], 0)
    no_room = step(opened.state, [("a$z", 0), ("a$z", 0)], 5_001)
    assert (sent(no_room), no_room.counts.late) == ([[b"a$x@0", b"a$y@0"]], 2)


def test_a_row_that_the_open_batch_in_front_of_it_overtook_is_late() -> None:
    opened = step(LaneState(), [("a$x", 10), ("b$x", 10), ("a$x", 500)], 5_000)
    result = step(opened.state, [("c$x", 5), ("c$y", 5)], 5_001)
    assert (sent(result), result.counts.late) == ([[b"a$x@10", b"b$x@10"]], 2)


def test_backlog_mode_flushes_every_micro_batch() -> None:
    backlog = PackingSettings(max=3, mode="backlog")
    result = step(LaneState(), [("a$x", 1), ("raw", 0)], 5_000, backlog)
    assert sent(result) == [[b"a$x@1", b"raw@0"]]
    assert (result.state.pending, result.state.open, result.counts.unsplittable) == (Rows(), Rows(), 1)


def test_a_group_above_the_maximum_is_counted_as_cut() -> None:
    result = step(LaneState(), [("a$x", 0)] * 4 + [("b$x", 0)], 5_000, end=True)
    assert [len(batch) for batch in result.batches] == [3, 2]
    assert result.counts == (5, 0, 1, 0, 0)


def test_a_repeat_from_the_kept_bytes_packs_the_same_batches() -> None:
    """The state that went in is untouched, and its bytes carry everything."""
    before = step(LaneState(), [("a$x", 0), ("b$x", None), ("a$x", 150)], 5_000).state
    kept = before.encode()
    rows: Arrived = [("a$x", 300), ("b$x", 20), ("raw", 150)]
    once = step(before, rows, 5_400)
    again = step(LaneState.decode(kept), rows, 5_400)
    assert before.encode() == kept
    assert once == again
    assert LaneState.decode(once.state.encode()) == once.state


def test_an_empty_step_changes_nothing() -> None:
    result = step(LaneState(), [], 5_000)
    assert (result.batches, result.state, result.due_ms) == ([], LaneState(), None)


@pytest.mark.parametrize("maximum", [1, 2, 5])
def test_every_row_leaves_exactly_once(maximum: int) -> None:
    settings, state, out = PackingSettings(max=maximum, lateness_ms=2, linger_ms=5), LaneState(), list[bytes]()
    for now in range(60):
        rows: Arrived = [(f"s{now % 4}$m{k}", (now * 7 + k) % 50) for k in range(now % 4)]
        result = step(state, rows, now, settings)
        state, out = result.state, out + [value for batch in result.batches for value in batch.values]
        assert all(1 <= len(batch) <= maximum for batch in result.batches)
    result = step(state, [], 60, settings, end=True)
    out += [value for batch in result.batches for value in batch.values]
    expected = [f"s{now % 4}$m{k}@{(now * 7 + k) % 50}".encode() for now in range(60) for k in range(now % 4)]
    assert sorted(out) == sorted(expected)
