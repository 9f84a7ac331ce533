"""Reading a changelog by record batches instead of by records (`streams.md` 3).

aiokafka makes a data class of every record, in a generator, and counts it on its way through two more loops; of a
million records only key, value, offset and header are wanted. So what aiokafka iterates over is one thing a batch here,
which holds its records as plain tuples, made in one comprehension. What aiokafka does with batches stays its own:
checksums, aborted transactions, the position behind a batch whose last records were compacted away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from aiokafka.consumer.fetcher import FetchResult, PartitionRecords

Logged = tuple[int, bytes, bytes | None, Sequence[tuple[str, bytes]]]
"""Offset, key, value and headers of a changelog record."""


class Batch:
    """A record batch as aiokafka has it, whose one "record" is all of it."""

    __slots__ = ("_batch", "offset")

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.offset = int(batch.next_offset) - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Batch]:
        yield self

    def __next__(self) -> Any:
        return next(self._batch)

    def records(self, start: int) -> list[Logged]:
        """Its records from the offset `start` on."""
        items = [(record.offset, record.key, record.value, record.headers) for record in self._batch]
        return items if not items or items[0][0] >= start else [item for item in items if item[0] >= start]


class Batches:
    """The batches of a fetch, in order, as `Batch`es."""

    __slots__ = ("_records",)

    def __init__(self, records: Any) -> None:
        self._records = records

    def has_next(self) -> bool:
        """Whether there is another one."""
        return bool(self._records.has_next())

    def next_batch(self) -> Batch:
        """The next one."""
        return Batch(self._records.next_batch())


class BatchRecords(PartitionRecords):
    """Fetched batches, each unpacked into a list of `Logged`."""

    def _consumer_record(self, tp: Any, record: Batch) -> list[Logged]:
        del tp
        return record.records(self.next_fetch_offset)


class Fetched(dict[Any, Any]):
    """What an aiokafka fetcher has fetched, by partition; whatever is put in gives `BatchRecords`."""

    def __setitem__(self, tp: Any, result: Any) -> None:
        if isinstance(result, FetchResult):
            result._partition_records.__class__ = BatchRecords
            result._partition_records._records = Batches(result._partition_records._records)
        super().__setitem__(tp, result)


def read_batches(consumer: Any) -> None:
    """Let a started aiokafka consumer hand over lists of `Logged`, one a batch."""
    fetcher = consumer._fetcher
    fetcher._records = Fetched(fetcher._records)
