"""A header name that is not UTF-8 costs its record the reading as usual, and nothing else."""

from __future__ import annotations

import gzip
import struct

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import UNREADABLE, Emission, Record
from headrace_core.state import MemoryState
from headrace_core.timeline.refusals import Refused
from headrace_core.timeline.wire import read_command
from headrace_streams import bulk, lenient
from headrace_streams.faust_internals import ChunkRecords
from tests.support.odd_headers import NAME, ODD, batch

TP = TopicPartition("t", 1)
SHOWN = ODD.decode(errors="backslashreplace")
COUNT, AT = 1_203, 700
Row = tuple[bytes | None, bytes, list[tuple[str, bytes]]]


def rows() -> list[Row]:
    made: list[Row] = [(b"k", b"v%d" % at, [("good", b"%d" % at)] if at % 2 else []) for at in range(COUNT)]
    made[AT] = (None, b"odd", [("topic", b"te/x"), (NAME, b"1")])
    return made


def compressed(raw: bytes) -> bytes:
    """The same batch with gzip."""
    head, body = bytearray(raw[:61]), gzip.compress(raw[61:])
    head[22] |= 1
    struct.pack_into(">i", head, 8, len(head) + len(body) - 12)
    made = head + body
    struct.pack_into(">I", made, 17, calc_crc32c(bytes(made[21:])))
    return bytes(made)


def read(raw: bytes, *, level: int, first: int = 0) -> list[Record]:
    records = PartitionRecords(TP, lenient.Records(raw), [], first, None, None, True, level)
    records.__class__ = ChunkRecords
    records.unpack_in_slices()
    return list(records)


def test_aiokafka_alone_never_gets_past_it() -> None:
    records = PartitionRecords(TP, MemoryRecords(batch(0, rows())), [], 0, None, None, True, READ_UNCOMMITTED)
    with pytest.raises(UnicodeDecodeError):
        list(records)


@pytest.mark.parametrize("level", [READ_UNCOMMITTED, READ_COMMITTED])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("first", [0, AT, AT + 1])
def test_the_record_is_marked_and_its_neighbours_are_whole(level: int, packed: bool, first: int) -> None:
    raw = batch(0, rows())
    found = read((compressed(raw) if packed else raw) + batch(COUNT, rows()), level=level, first=first)
    assert [record.offset for record in found] == list(range(first, 2 * COUNT))
    for record in found:
        key, value, headers = rows()[record.offset % COUNT]
        assert (record.key, record.value) == (key, value)
        if record.offset % COUNT == AT:
            assert record.headers == (UNREADABLE, ("topic", b"te/x"), (SHOWN, b"1"))
            assert all(type(name) is str for name, _ in record.headers)
        else:
            assert record.headers == tuple(headers)


def test_a_changelog_is_read_past_it_too() -> None:
    records = PartitionRecords(TP, bulk.Batches(lenient.Records(batch(0, rows()))), [], 0, None, None, True, 1)
    records.__class__ = bulk.BatchRecords
    (found,) = list(records)
    assert [offset for offset, *_ in found] == list(range(COUNT))


def test_what_is_damaged_otherwise_is_still_refused() -> None:
    raw = bytearray(batch(0, rows()))
    struct.pack_into(">i", raw, 57, COUNT + 1)  # one record more than there is
    struct.pack_into(">I", raw, 17, calc_crc32c(bytes(raw[21:])))
    with pytest.raises(CorruptRecordException, match="fewer records than the batch says"):
        read(bytes(raw), level=READ_UNCOMMITTED)


def test_consumers_of_the_process_read_so() -> None:
    lenient.install()
    assert fetcher.MemoryRecords is lenient.Records
    assert lenient.Records(b"").has_next() is False
    assert lenient.Records(b"123").size_in_bytes() == 3


def test_registration_makes_a_dead_letter_of_it_and_a_timeline_refuses_it() -> None:
    stage, state, emitted = RegistrationStage(RegistrationConfig(roots={"te": "m"})), MemoryState(), list[Emission]()
    record = Record(0, 5, 1_000, b"te", b"odd", (UNREADABLE, ("topic", b"te/device/a//"), (SHOWN, b"1")))
    stage.apply(state, record, emitted.append)
    (letter,) = [one for one in emitted if one.topic == "dead-letter"]
    assert b"the name of a header is not UTF-8" in (letter.value or b"")
    assert stage.gauges(state)["unreadable"] == 1
    with pytest.raises(Refused):
        read_command(record)
