"""The source of a time buffer (timeline.md 11): each of its records becomes a command of the timeline (13.1).

    source topic --SourceStage, per source partition--> timeline.<t>.commands --TimelineStage--> target

So the timeline's time is that of its own log, whoever stamps the source; the source gets no ticks; and `cancel` and
`move` stand in one order with what arrives. Of one source partition all goes to one partition of the commands, in
order. A crash repeats commands byte by byte, which the engine ignores as duplicates.

A record keeps its key, its value and its headers, but for the marks of an earlier time buffer: `tl-source`, and the
`id` of the stage that put it out. The next one makes its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from headrace_core.stage import UNREADABLE, Emission, Record
from headrace_core.state import State
from headrace_core.timeline.buffer import SourceRecord
from headrace_core.timeline.settings import Settings

TL_SOURCE = "tl-source"
COUNT = b"nin"


class SourceStage:
    """headrace_core.stage.Stage that reads the source topic of the timeline `timeline`.

    `topic` is the topic's whole name; it becomes part of the messages' ids. A record's `append_ms` is its timestamp,
    by whomever it was given.
    """

    primary = b"n"

    def __init__(self, settings: Settings, timeline: str, topic: str) -> None:
        self.name = f"timeline.{timeline}.in"
        self._commands = f"timeline.{timeline}.commands"
        self._topic = topic
        self._buckets, self._partitions = settings.bucket_count, settings.partitions

    def apply(self, state: State, record: Record, emit: Callable[[Emission], None]) -> None:
        """One command, in the partition of the source partition's bucket."""
        place = {
            "topic": self._topic, "partition": record.partition, "offset": record.offset,
            "record_timestamp": record.append_ms,
        }  # fmt: skip
        headers: list[tuple[str, bytes | None]] = [one for one in record.headers if not _mark(*one)]
        emit(
            Emission(
                self._commands,
                f"{self._topic}-{record.partition}-{record.offset}".encode(),
                msgspec.msgpack.encode(SourceRecord(record.key, record.value, headers)),
                (
                    ("tl-op", b"buffer_in"),
                    ("tl-args", msgspec.json.encode(place)),
                    ("id", f"{self.name}:{record.partition}:{record.offset}:0".encode()),
                ),
                record.partition % self._buckets % self._partitions,
            )
        )
        state.put(COUNT, (_count(state) + 1).to_bytes(8))

    def derive(self, state: State, key: bytes, value: bytes) -> None:
        """Nothing is derived."""

    def next_due(self, state: State) -> int | None:  # noqa: ARG002
        """Nothing waits here."""
        return None

    def gauges(self, state: State) -> Mapping[str, int]:
        """`in`: records read, each of which became a command."""
        return {"in": _count(state)}

    def forget(self) -> None:
        """There are no caches."""


def _count(state: State) -> int:
    return int.from_bytes(state.get(COUNT) or b"")


def _mark(name: str, value: bytes | None) -> bool:
    return (
        name == TL_SOURCE or (name, value) == UNREADABLE or (name == "id" and (value or b"").startswith(b"timeline."))
    )
