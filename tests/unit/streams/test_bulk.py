"""Batches of a changelog, unpacked whole: the same records and positions as aiokafka's own reading gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from headrace_streams.bulk import Fetched, Logged

TP = TopicPartition("changelog", 0)
READ_COMMITTED = 1


class Always:
    """An assignment that is active, and the position in it."""

    active, paused, position = True, False, 0

    def state_value(self, _: Any) -> Always:
        return self

    def consumed_to(self, position: int) -> None:
        self.position = position


def batch(first: int, offsets: Sequence[int], *, producer: int = -1, transactional: bool = False) -> bytes:
    """A record batch as a log holds it, with the records at these offsets behind `first`."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=transactional, producer_id=producer,
        producer_epoch=0, base_sequence=0, batch_size=1 << 20,
    )  # fmt: skip
    for offset in offsets:
        builder.append(offset - first, 1_000, b"k%d" % offset, b"v%d" % offset if offset % 3 else None,
                       [("o", b"%d" % first)])  # fmt: skip
    raw = bytearray(builder.build())
    raw[0:8] = first.to_bytes(8, "big")
    return bytes(raw)


def fetched(raw: bytes, start: int, aborted: Any = None) -> PartitionRecords:
    return PartitionRecords(TP, MemoryRecords(raw), aborted, start, None, None, True, READ_COMMITTED)


def both(raw: bytes, start: int = 0, aborted: Any = None) -> tuple[list[Logged], int]:
    """What is read from `start` on, and the position behind it; aiokafka reads the same."""
    theirs = fetched(raw, start, aborted)
    expected = [(one.offset, one.key, one.value, list(one.headers)) for one in theirs]
    assignment = Always()
    assignment.position = start
    result = FetchResult(TP, assignment=assignment, partition_records=fetched(raw, start, aborted), backoff=0)
    fetcher_records = Fetched()
    fetcher_records[TP] = result
    read = [one for records in result.getall(5) for one in records]
    assert [(offset, key, value, list(headers)) for offset, key, value, headers in read] == expected
    assert assignment.position == theirs.next_fetch_offset
    return read, assignment.position


def test_all_records_of_all_batches_come_in_order() -> None:
    read, position = both(batch(0, [0, 1, 2]) + batch(3, [3, 4]))
    assert read[:2] == [(0, b"k0", None, [("o", b"0")]), (1, b"k1", b"v1", [("o", b"0")])]
    assert ([one[0] for one in read], position) == ([0, 1, 2, 3, 4], 5)


def test_holes_within_a_batch_are_no_matter_and_a_start_within_one_is_kept_to() -> None:
    read, position = both(batch(0, [0, 2, 5]) + batch(6, [7]), start=2)
    assert ([one[0] for one in read], position) == ([2, 5, 7], 8)


@pytest.mark.parametrize("producer", [7, 8])
def test_what_a_producer_has_aborted_is_left_out(producer: int) -> None:
    raw = batch(0, [0, 1], producer=producer, transactional=True) + batch(2, [2], producer=9, transactional=True)
    read, position = both(raw, aborted=[(7, 0)])
    assert ([one[0] for one in read], position) == ([2] if producer == 7 else [0, 1, 2], 3)


def test_a_damaged_batch_is_not_read() -> None:
    raw = bytearray(batch(0, [0, 1]))
    raw[-1] ^= 0xFF
    assignment, store = Always(), Fetched()
    store[TP] = FetchResult(TP, assignment=assignment, partition_records=fetched(bytes(raw), 0), backoff=0)
    with pytest.raises(Exception, match="CRC"):
        store[TP].getall(5)
