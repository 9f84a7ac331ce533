"""The budget of what is under way: bounded over all partitions, and nobody is starved by the others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.stage import Record
from headrace_streams import budget

PARTITIONS = set(range(8))
FULL = 5_000


def record(value: bytes | None) -> Record:
    return Record(0, 7, 1_000, b"te", value, (("topic", b"te/x"),))


def test_a_chunk_weighs_its_records_and_their_values() -> None:
    assert budget.weight([record(None), record(b""), record(b"x" * 500)]) == 3 * budget.RECORD_BYTES + 500
    assert budget.weight([]) == 0


def test_while_there_is_room_chunks_are_large_and_a_partition_may_have_three() -> None:
    heavy = FULL * budget.RECORD_BYTES
    assert budget.room([], PARTITIONS, FULL) == (PARTITIONS, FULL)
    assert budget.room([(0, heavy), (0, heavy)], PARTITIONS, FULL) == (PARTITIONS, FULL)
    assert budget.room([(0, heavy)] * 3, PARTITIONS, FULL).partitions == PARTITIONS - {0}


def test_when_the_budget_is_used_up_only_those_without_a_chunk_get_one_and_a_small_one() -> None:
    used_up = [(0, budget.BYTES // 2), (1, budget.BYTES // 2)]
    assert budget.room(used_up, PARTITIONS, FULL) == (PARTITIONS - {0, 1}, budget.SMALL_RECORDS)
    assert budget.room(used_up, {0, 1}, FULL).partitions == set()


def test_what_is_left_goes_to_those_that_have_none_and_a_second_chunk_is_never_a_cut_one() -> None:
    left = 2_000 * budget.RECORD_BYTES
    assert budget.room([(0, budget.BYTES - left)], PARTITIONS, FULL) == (PARTITIONS - {0}, 2_000)


def test_what_comes_a_few_records_at_a_time_is_not_counted_by_chunks() -> None:
    assert budget.room([(0, 2_000)] * 20, PARTITIONS, FULL).partitions == PARTITIONS
    used_up = [(1, budget.BYTES), *[(0, 2_000)] * 20]
    assert budget.room(used_up, PARTITIONS, FULL).partitions == PARTITIONS - {1}


def test_a_worker_that_is_told_to_take_small_chunks_takes_no_larger_ones() -> None:
    assert budget.room([], PARTITIONS, 10) == (PARTITIONS, 10)
    assert budget.room([(0, budget.BYTES)], PARTITIONS, 10) == (PARTITIONS - {0}, 10)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=80),
    value=st.sampled_from([0, 60, 4_000]),
    most=st.sampled_from([1, 500, FULL]),
)
def test_never_is_more_held_than_the_budget_and_a_little_for_each(
    steps: list[tuple[int, bool]], value: int, most: int
) -> None:
    held: list[tuple[int, int]] = []
    bytes_a_record = budget.RECORD_BYTES + value
    each = budget.SMALL_RECORDS * bytes_a_record + budget.SMALL_BYTES
    for partition, done in steps:
        if done and held:
            held.pop(0)
        room = budget.room(held, PARTITIONS, most)
        assert 0 < room.records <= most
        assert room.partitions >= PARTITIONS - {one for one, _ in held}, "one that has none is never left out"
        if partition in room.partitions:
            held.append((partition, room.records * bytes_a_record))
        last = FULL * bytes_a_record
        assert sum(bytes_ for _, bytes_ in held) <= budget.BYTES + last + len(PARTITIONS) * each
