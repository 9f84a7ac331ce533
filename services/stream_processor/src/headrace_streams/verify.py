"""`python -m headrace_streams verify STAGE`: are this worker's databases what the changelog says?

Every database of the stage in the data directory is read as it is at one moment, whether a worker has it open or not.
Its position says up to where it contains the changelog; so the changelog is read up to there, the highest source offset
wins per key, and the stage derives its other keys anew. The two must be equal, key by key, and the markers too.

What the changelog says after the position is not compared: the worker has not applied it yet, or another worker has
the partition now. Compaction may then have taken the older value of such a key away; what cannot be told for that
reason is `undecided` and tried again, with a newer copy, a few times.

A line of JSON on stdout for each differing key, then one for each partition (`Difference`, `Summary`, `Damage`).
Exit codes: 0 equal, 1 something differs, 2 it could not be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import ValidationError
from pydantic_settings import SettingsError

from headrace_core.changelog import MARKER_KEY, Delta, Marker, source_of
from headrace_core.errors import HeadraceError
from headrace_core.stage import Stage
from headrace_core.state import MemoryState, Overlay
from headrace_streams import stages
from headrace_streams.restore import Changelog, changelog_consumer
from headrace_streams.settings import StreamsSettings
from headrace_streams.store import META_FAMILY, Position, read_copy

log = structlog.get_logger(__name__)

ATTEMPTS = 3
AGAIN_S = 0.2
EQUAL, DIFFERENT, NOT_COMPARED = 0, 1, 2


class NotCompared(HeadraceError):
    """Database or changelog are not there, or cannot belong together."""

    code = "not-compared"


class Damaged(HeadraceError):
    """A database cannot be read."""

    code = "damaged"


class Difference(msgspec.Struct, frozen=True):
    """A key that differs. Key and values are Base64 in JSON; None: the key is not there. `derived`: not of the
    changelog itself."""

    partition: int
    key: bytes
    changelog: bytes | None
    database: bytes | None
    derived: bool


class Damage(msgspec.Struct, frozen=True):
    """A database that cannot be read: RocksDB's own checks say so."""

    partition: int
    damaged: str


class Summary(msgspec.Struct, frozen=True):
    """What was compared of a partition. `behind`: records of the changelog after the database's position."""

    partition: int
    keys: int
    derived: int
    differing: int
    undecided: int
    behind: int
    source: int


@dataclass
class Said:
    """What a changelog says up to a database's position, and the keys that it says more of afterwards.

    A late writer's record (streams.md 5) may stand before the position and be of a chunk that the database has not
    reached: that is "afterwards", too.
    """

    position: Position
    delta: Delta = field(default_factory=lambda: Delta({}, Marker()))
    later: set[bytes] = field(default_factory=set)
    end: int = 0

    def add(self, offset: int, key: bytes, value: bytes | None, source: int) -> None:
        """Take one record of the changelog."""
        if offset >= self.position.changelog or source > self.position.marker.source:
            self.later.add(key)
        else:
            self.delta.add(key, value, source)

    def undecided(self, key: bytes) -> bool:
        """Whether compaction may have taken the value of a key at the position away."""
        return key in self.later and key not in self.delta.items


async def read_changelog(bootstrap: str, tp: TopicPartition, position: Position) -> Said:
    """Read what is committed, to its end. Raises NotCompared, and ChangelogError if that stops."""
    consumer = changelog_consumer(bootstrap)
    await consumer.start()
    try:
        first, end = await _bounds(consumer, tp)
        if position.changelog > end:
            raise NotCompared(f"{tp}: the database is at {position.changelog}, past the end {end}: another Kafka?")
        said = Said(position, end=end)
        consumer.assign([tp])
        async for records in Changelog(consumer, tp).read(first, end):
            for record in records:
                if record.offset < end:
                    said.add(record.offset, record.key, record.value, source_of(record.headers))
        return said
    finally:
        await consumer.stop()


async def _bounds(consumer: AIOKafkaConsumer, tp: TopicPartition) -> tuple[int, int]:
    if tp.topic not in await consumer.topics():
        raise NotCompared(f"there is no topic {tp.topic}")
    first, end = await consumer.beginning_offsets([tp]), await consumer.end_offsets([tp])
    return int(first[tp]), int(end[tp])


def expected(stage: Stage, said: Said) -> tuple[dict[bytes, bytes], set[bytes]]:
    """What a database must hold that contains this, and which of it is derived. Raises NotCompared."""
    primary = {key: value for key, (_, value) in said.delta.items.items() if value is not None}
    overlay = Overlay(MemoryState(primary))
    for key in sorted(primary):
        try:
            stage.derive(overlay, key, primary[key])
        except Exception as error:
            raise NotCompared(f"the changelog's item {key!r} cannot be read: {error!r}") from error
    whole: dict[bytes, bytes | None] = {**primary, **overlay.mutations}
    found = {key: value for key, value in whole.items() if value is not None}
    return found, {key for key in found if key[0] not in stage.primary}


def differences(
    partition: int, stage: Stage, wanted: dict[bytes, bytes], there: dict[bytes, bytes]
) -> Iterator[Difference]:
    """The keys that differ, in order."""
    for key in sorted(wanted.keys() | there.keys()):
        if wanted.get(key) != there.get(key) and key[0] != META_FAMILY:
            yield Difference(partition, key, wanted.get(key), there.get(key), key[0] not in stage.primary)


def marker_difference(partition: int, said: Said) -> Difference | None:
    """Whether the database's marker is another than the changelog's; one that was compacted away cannot be told."""
    wanted, there = said.delta.marker, said.position.marker
    compacted = MARKER_KEY in said.later and wanted.source < there.source
    if wanted == there or compacted:
        return None
    encode = msgspec.json.encode
    return Difference(partition, MARKER_KEY, encode(wanted), encode(there), derived=False)


async def compare(bootstrap: str, tp: TopicPartition, stage: Stage, path: Path) -> tuple[list[Difference], Summary]:
    """Compare one database. Raises NotCompared, Damaged, ChangelogError, and what aiokafka raises."""
    for _ in range(ATTEMPTS):
        there, position = _copy(path)
        said = await read_changelog(bootstrap, tp, position)
        found, summary = judge(tp.partition, stage, said, there)
        if not summary.undecided:
            break
    return found, summary


def judge(partition: int, stage: Stage, said: Said, there: dict[bytes, bytes]) -> tuple[list[Difference], Summary]:
    """What differs, and the numbers. Raises NotCompared."""
    wanted, derived = expected(stage, said)
    found = list(differences(partition, stage, wanted, there))
    open_ = {one.key for one in found if said.undecided(one.key)}
    if open_:  # what derives from such a key cannot be told either
        open_ |= {one.key for one in found if one.derived}
    found = [one for one in found if one.key not in open_]
    if marker := marker_difference(partition, said):
        found.append(marker)
    return found, Summary(
        partition, len(wanted) - len(derived), len(derived), len(found), len(open_),
        said.end - said.position.changelog, said.position.marker.source,
    )  # fmt: skip


def _copy(path: Path) -> tuple[dict[bytes, bytes], Position]:
    """A copy of a database. A worker that compacts at this moment may delete a file before it is opened here: again."""
    for attempt in range(ATTEMPTS):
        try:
            return read_copy(path)
        except FileNotFoundError as error:
            raise NotCompared(str(error)) from error
        except Exception as error:
            if attempt == ATTEMPTS - 1:
                raise Damaged(f"{path} cannot be read: {error}") from error
            time.sleep(AGAIN_S)
    raise AssertionError("unreachable")


def databases(folder: Path, partition: int | None) -> dict[int, Path]:
    """The databases of a stage by partition, or that of one. Raises NotCompared if there is none."""
    found = {int(path.name): path for path in folder.glob("*") if path.name.isdigit()}
    if partition is not None:
        found = {number: path for number, path in found.items() if number == partition}
    if not found:
        raise NotCompared(f"no database in {folder}" + ("" if partition is None else f" for partition {partition}"))
    return dict(sorted(found.items()))


async def verify(settings: StreamsSettings, name: str, partition: int | None) -> int:
    """Compare all databases of a stage, tell on stdout. Returns the exit code."""
    spec = next((one for one in stages.load(settings) if one.name == name), None)
    if spec is None:
        raise NotCompared(f"{name} is none of the stages {settings.stages}")
    equal = True
    for number, path in databases(settings.data_dir / name, partition).items():
        tp = TopicPartition(settings.prefix + spec.changelog, number)
        try:
            found, summary = await compare(settings.kafka, tp, spec.make(), path)
        except Damaged as error:
            _tell([Damage(number, str(error))])
            equal = False
            continue
        _tell([*found, summary])
        equal = equal and not found
    return EQUAL if equal else DIFFERENT


def _tell(lines: Iterable[msgspec.Struct]) -> None:
    for line in lines:
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser("python -m headrace_streams verify", description="database against changelog")
    parser.add_argument("stage")
    parser.add_argument("--partition", type=int)
    asked = parser.parse_args(arguments)
    try:
        return asyncio.run(verify(StreamsSettings(), asked.stage, asked.partition))
    except (ValidationError, SettingsError, HeadraceError) as error:
        log.critical("not compared", error=str(error))
    except Exception as error:
        log.critical("not compared", error=repr(error))
    return NOT_COMPARED
