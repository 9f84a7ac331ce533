"""A fixed range of topics, by times or by offsets (spark-writer.md 11), as it stands in the job file.

Theory: each side of the range is given by a time, the same for all partitions, or by offsets, or not at all, which
means the beginning or the end of the topic. An offset that is not given is that too. Which offsets a time means only
the broker knows; what it says is a `Span` for each partition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Annotated, Final

import msgspec

from headrace_core.errors import ConfigError

Time = Annotated[datetime, msgspec.Meta(tz=True)]
Offset = Annotated[int, msgspec.Meta(ge=0)]
_PLACE: Final = re.compile(r"(.+)-(0|[1-9][0-9]{0,8})")


class Span(msgspec.Struct, frozen=True, order=True):
    """The offsets `first` to `next` - 1 of a partition."""

    topic: str
    partition: int
    first: int
    next: int

    def __len__(self) -> int:
        return max(0, self.next - self.first)


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """From `from_...`, included, to `to_...`, not included. Times are of Kafka's records; the keys of offsets are
    `topic-partition`."""

    from_time: Time | None = None
    to_time: Time | None = None
    from_offsets: dict[str, Offset] = {}
    to_offsets: dict[str, Offset] = {}

    def check(self, table: str, topics: Collection[str]) -> None:
        """Raise `ConfigError` for the first field that cannot work; `table` is where it stands in the job file."""
        for side in ("from", "to"):
            field = f"{table}.{side}_offsets"
            if getattr(self, f"{side}_offsets") and getattr(self, f"{side}_time") is not None:
                raise ConfigError(field, f"must not stand beside {table}.{side}_time")
            for name in getattr(self, f"{side}_offsets"):
                if place_of(name, field)[0] not in topics:
                    raise ConfigError(field, f"{name} is of none of the topics {', '.join(sorted(topics))}")
        if self.from_time is not None and self.to_time is not None and self.from_time >= self.to_time:
            raise ConfigError(f"{table}.to_time", "must be after from_time")
        for name, first in self.from_offsets.items():
            if first > self.to_offsets.get(name, first):
                raise ConfigError(f"{table}.to_offsets", f"{name} must be at least {first}, where the range begins")


def place_of(name: str, field: str) -> tuple[str, int]:
    """Topic and partition. Raises `ConfigError` that names `field`."""
    found = _PLACE.fullmatch(name)
    if found is None:
        raise ConfigError(field, f"{name!r} must be topic-partition")
    return found[1], int(found[2])


def ms_of(time: datetime) -> int:
    """UTC milliseconds, fractions cut off."""
    return int(time.timestamp() * 1_000_000) // 1000


def chunks(spans: Collection[Span], step: int) -> Iterator[list[Span]]:
    """Cut spans into chunks of at most `step` offsets, or one a span: chunk k has the k-th part of each span, so each
    partition goes on in order from chunk to chunk."""
    each = max(1, step // max(1, len(spans)))
    for number in range(max((-(-len(one) // each) for one in spans), default=0)):
        parts = (
            Span(one.topic, one.partition, one.first + number * each, min(one.next, one.first + (number + 1) * each))
            for one in sorted(spans)
        )
        yield [part for part in parts if len(part) > 0]
