"""Fetched batches give the same records and positions in slices as one by one by aiokafka's own loop."""

from __future__ import annotations

import struct

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from headrace_core.stage import Record
from headrace_streams.faust_internals import SLICE_RECORDS, ChunkRecords

PARTITION = 3
CONTROL = 0x20
GZIP = 1


def batch(first: int, count: int, *, compression: int = 0, control: bool = False) -> bytes:
    """A record batch from the offset `first` on."""
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, 0, 10_000_000)
    for at in range(count):
        headers = [("id", b"%d" % at), ("kind", b"data")] if at % 2 else []
        builder.append(at, 1000 + at, None if at % 3 else b"k", b"v%d" % at, headers)
    made = bytearray(builder.build())
    made[:8] = struct.pack(">q", first)
    if control:
        made[22] |= CONTROL  # the low byte of the attributes
    return bytes(made)


def fetched(
    log: bytes, first: int, *, in_slices: bool, level: int = READ_UNCOMMITTED, crc: bool = False
) -> ChunkRecords:
    """A fetch from the offset `first` on."""
    tp = TopicPartition("t", PARTITION)
    records = PartitionRecords(tp, MemoryRecords(log), [], first, None, None, crc, level)
    records.__class__ = ChunkRecords
    if in_slices:
        records.unpack_in_slices()
    return records


def taken(records: ChunkRecords) -> list[tuple[Record, int]]:
    """Each record with the position after it; at the end None and the last position."""
    return [(record, records.next_fetch_offset) for record in records] + [(None, records.next_fetch_offset)]


LOGS = {
    "one batch of more than a slice": batch(0, 2 * SLICE_RECORDS + 1),
    "exactly a slice": batch(0, SLICE_RECORDS) + batch(SLICE_RECORDS, 1),
    "several": batch(10, 3) + batch(13, SLICE_RECORDS) + batch(900, 2),
    "compressed": batch(0, SLICE_RECORDS + 1, compression=GZIP),
    "control": batch(0, 2) + batch(2, 1, control=True) + batch(3, 2) + batch(5, 1, control=True),
    "nothing": b"",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
@pytest.mark.parametrize("first", [0, 11, SLICE_RECORDS])
def test_the_records_and_positions_are_those_of_one_by_one(log: bytes, first: int) -> None:
    found = taken(fetched(log, first, in_slices=True))
    assert found == taken(fetched(log, first, in_slices=False))
    assert all(type(record) is Record and type(record.headers) is tuple for record, _ in found[:-1])


def test_a_fetch_can_be_taken_in_parts() -> None:
    records = fetched(LOGS["several"], 10, in_slices=True)
    first = [next(records) for _ in range(5)]
    assert [record.offset for record in first] == [10, 11, 12, 13, 14]
    assert records.next_fetch_offset == 15
    assert next(iter(records)).offset == 15


def test_a_damaged_batch_is_refused_behind_the_sound_ones() -> None:
    damaged = bytearray(batch(2, 2))
    damaged[-1] ^= 0xFF
    records = fetched(batch(0, 2) + bytes(damaged), 0, in_slices=True, crc=True)
    assert [next(records).offset, next(records).offset] == [0, 1]
    with pytest.raises(CorruptRecordException):
        next(records)
    assert records.next_fetch_offset == 2


def test_what_is_committed_is_told_apart_by_aiokafka() -> None:
    records = fetched(batch(0, 2), 0, in_slices=True, level=READ_COMMITTED)
    assert records._records_iterator.__name__ == "_unpack_records"
    assert len(taken(records)) == 3
