"""The bytes of a COPY, read back as PostgreSQL reads them: the number of columns, then each value behind its length."""

from __future__ import annotations

import struct

from headrace_spark.sinks.copying import COLUMNS, copied
from headrace_spark.sinks.port import Batch
from headrace_spark.transforms.rows import Row

FORMATS = {"text": None, "int8": ">q", "int4": ">i", "float8": ">d", "bool": ">?"}
TYPES = [
    *["text", "int8", "int4", "text", "int4", "text", "int4", "int8", "text", "int8", "text"],
    *["text", "int8", "float8", "bool"],
]


def read(data: bytes) -> list[tuple[object, ...]]:
    """The rows of a binary COPY."""
    assert data[:19] == b"PGCOPY\n\xff\r\n\x00" + bytes(8)
    at, rows = 19, []
    while (count := struct.unpack_from(">h", data, at)[0]) != -1:
        assert count == len(COLUMNS)
        at, row = at + 2, []
        for name in TYPES:
            (size,) = struct.unpack_from(">i", data, at)
            value = data[at + 4 : at + 4 + size]
            kind = FORMATS[name]
            row.append(struct.unpack(kind, value)[0] if kind else value.decode())
            at += 4 + size
        rows.append(tuple(row))
    assert at + 2 == len(data)
    return rows


def test_every_row_says_whose_it_is_and_where_it_came_from() -> None:
    one = Row("te/device/ä//", "env.größe", -5, 77, "b" * 32, 1.5, False)
    two = Row("te/device/ä//", "on", 6, 77, "b" * 32, 1.0, True)
    other = Row("te/device/ä//", "on", 6, 78, "c" * 32, -0.0, True)
    here, there = ("t", 1, 7), ("t", 1, 8)
    data = copied(Batch("q", 3), 2, "run:9", 4, [(here, one), (here, two), (there, two), (there, other)])
    whose, source = ("q", 3, 2, "run:9", 4), "te/device/ä//"
    assert read(data) == [
        (*whose, *here, source, 77, "b" * 32, "env.größe", -5, 1.5, False),
        (*whose, *here, source, 77, "b" * 32, "on", 6, 1.0, True),
        (*whose, *there, source, 77, "b" * 32, "on", 6, 1.0, True),
        (*whose, *there, source, 78, "c" * 32, "on", 6, -0.0, True),
    ]


def test_a_chunk_without_rows_is_empty() -> None:
    assert read(copied(Batch("q", 0), 0, "a", 0, [])) == []
