"""Which offsets that the job still needs are gone (spark-writer.md 10, cases 8 and 9).

Theory: the checkpoint says where the next micro-batch begins, or the one that must be repeated. Kafka says where each
partition begins and ends now, and which topic it is. A partition that begins later has lost the offsets between. One
that ends earlier, or is not there, or a topic with another id, is another topic under the same name. Gaps inside a
partition, from transactions or compaction, are no loss: nobody counts what is read (case 10).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import msgspec

from headrace_core.errors import HeadraceError
from headrace_spark.checkpoint import examine, offsets_of
from headrace_spark.folders.port import Folder

Offsets = Mapping[tuple[str, int], int]


class DataLost(HeadraceError):
    """Offsets that are needed are gone. Nothing was written."""

    code = "data_lost"


class Gap(msgspec.Struct, frozen=True):
    """Lost offsets of a partition, `first` and `last` included."""

    topic: str
    partition: int
    first: int
    last: int

    @property
    def count(self) -> int:
        """How many; some of them may never have been records."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.topic}, partition {self.partition}: offsets {self.first} to {self.last}, {self.count} of them"


def needed(checkpoint: Folder, written: int | None) -> dict[tuple[str, int], int]:
    """The first offset of each partition that is not committed, by Spark's commit log or by the ledger, whose newest
    batch id is `written`. Empty for a new checkpoint."""
    entries = examine(checkpoint)
    if not entries:
        return {}
    ended = [one.batch_id for one in entries if one.committed or (written is not None and one.batch_id <= written)]
    if ended:
        text = offsets_of(checkpoint, ended[-1])[2]
    else:
        first = checkpoint.read("sources/0/0")
        text = first.decode().lstrip("\0").partition("\n")[2] if first is not None else "{}"
    found = json.loads(text)
    return {(topic, int(number)): at for topic, parts in found.items() for number, at in parts.items()}


def gaps(wanted: Offsets, begins: Offsets) -> list[Gap]:
    """What retention took of what is wanted."""
    return [
        Gap(topic, partition, at, begins[topic, partition] - 1)
        for (topic, partition), at in sorted(wanted.items())
        if begins.get((topic, partition), 0) > at
    ]


def replaced(wanted: Offsets, ends: Offsets, ids_then: Mapping[str, str], ids_now: Mapping[str, str]) -> list[str]:
    """Topics that were deleted, and perhaps made again, in words."""
    found = {
        topic: f"the topic {topic} is another one than before: its id is {ids_now[topic]}, it was {ids_then[topic]}"
        for topic in sorted(ids_now.keys() & ids_then.keys())
        if ids_now[topic] != ids_then[topic]
    }
    for (topic, partition), at in sorted(wanted.items()):
        end = ends.get((topic, partition))
        if topic not in found and (end is None or end < at):
            has = "is not there" if end is None else f"ends at {end}"
            found[topic] = f"{topic}, partition {partition} {has}, but offset {at} is next: the topic was deleted"
    return list(found.values())


def renamed(wanted: Offsets, subscribed: Collection[str]) -> tuple[list[str], list[str]]:
    """Topics that the checkpoint has read and the job reads no more, and those that it did not read before; none of a
    new checkpoint."""
    before = {topic for topic, _ in wanted}
    return sorted(before - set(subscribed)), sorted(set(subscribed) - before) if before else []


def check(lost: list[Gap], others: list[str], *, accept: bool) -> None:
    """Raise `DataLost` for topics that were replaced, and for gaps that nobody accepted."""
    if others:
        raise DataLost(f"{'; '.join(others)}: start anew with another checkpoint folder and --new-checkpoint")
    if lost and not accept:
        raise DataLost(
            f"offsets that are still needed are gone: {'; '.join(map(str, lost))}; go on without them with"
            " --accept-loss"
        )
