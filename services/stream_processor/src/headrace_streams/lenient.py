"""Record batches whose header names need not be UTF-8.

Kafka brokers do not look into header names, and clients in C write any bytes. aiokafka's parser raises for such a name
and never gets past its record, so one record would end the worker at every start. Here a batch is parsed by aiokafka as
ever, a slice at a time; only if that fails over a name it is parsed again by aiokafka's parser in Python, from a buffer
that decodes such names with backslashes. Its record has the header `UNREADABLE` in front, and the stage judges it.

`install` puts `Records` in the place of aiokafka's `MemoryRecords`, for all consumers of the process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any, SupportsIndex

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy, _DefaultRecordPy
from aiokafka.record.memory_records import MemoryRecords

from headrace_core.stage import UNREADABLE

SLICE_RECORDS = 500
LENGTH_AT, LOG_OVERHEAD = 8, 12
"""Of a batch in any format: where its length is, and how many bytes that does not count."""


class _Odd(str):
    """A header name that was not UTF-8."""


class _Buffer(bytearray):
    """Bytes whose slices decode always."""

    def __getitem__(self, at: SupportsIndex | slice) -> Any:
        found = super().__getitem__(at)
        return _Buffer(found) if isinstance(found, bytearray) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        try:
            return super().decode(encoding, errors)
        except UnicodeDecodeError:
            return _Odd(super().decode(encoding, "backslashreplace"))


class _LenientBatch(_DefaultRecordBatchPy):
    """aiokafka's parser over such a buffer."""

    _buffer: Any

    def __iter__(self) -> _LenientBatch:
        super().__iter__()
        self._buffer = _Buffer(self._buffer)
        return self

    def _read_msg(self, *args: Any) -> _DefaultRecordPy:
        if self._pos >= len(self._buffer):  # aiokafka's numbers in C are read behind the end of the buffer, too
            raise CorruptRecordException("fewer records than the batch says")
        record = super()._read_msg(*args)
        if not any(type(name) is _Odd for name, _ in record.headers):
            return record
        return replace(record, headers=[UNREADABLE, *((str(name), value) for name, value in record.headers)])


class Batch:
    """A batch as aiokafka has it, which can be iterated over whatever its header names are."""

    __slots__ = ("_batch", "_raw")

    def __init__(self, batch: Any, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(self._slices())

    def _slices(self) -> Iterator[list[Any]]:
        raws, given = chain(self._batch), 0
        try:
            while some := list(islice(raws, SLICE_RECORDS)):
                yield some
                given += len(some)
        except UnicodeDecodeError:
            pass
        else:
            return
        again = islice(_LenientBatch(self._raw), given, None)
        while some := list(islice(again, SLICE_RECORDS)):
            yield some


class Records:
    """The batches of a fetch, as `MemoryRecords`."""

    __slots__ = ("_at", "_raw", "_records")

    def __init__(self, raw: bytes) -> None:
        self._records = MemoryRecords(raw)
        self._raw = memoryview(raw)
        self._at = 0

    def size_in_bytes(self) -> int:
        """Of all."""
        return int(self._records.size_in_bytes())

    def has_next(self) -> bool:
        """Whether there is another whole one."""
        return bool(self._records.has_next())

    def next_batch(self) -> Batch:
        """The next one."""
        start = self._at
        (length,) = struct.unpack_from(">i", self._raw, start + LENGTH_AT)
        self._at = start + LOG_OVERHEAD + length
        return Batch(self._records.next_batch(), self._raw[start : self._at])


def install() -> None:
    """From now on all aiokafka consumers of the process read so."""
    fetcher.MemoryRecords = Records
