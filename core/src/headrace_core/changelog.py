"""What a record of a changelog is, and what many of them say together (`streams.md` 2.4, 3, 5).

A changelog holds *groups*: the mutations of one chunk and, last, its marker, appended whole. Every record carries, in
the header `o`, the source offset of its chunk. Per key the value with the highest source offset wins, so that a late
writer cannot put an older value over a newer one; a value of None says that the key is no more.

What can never happen: a marker that goes back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace_core.errors import HeadraceError

MARKER_KEY = b"\xff\xffmarker"
SOURCE_HEADER = "o"


class ChangelogError(HeadraceError):
    """A changelog cannot be read, or does not belong to the database beside it."""

    code = "changelog"


class Marker(msgspec.Struct, frozen=True):
    """What has been applied: highest source offset, highest append time (ms), group generation that wrote it.

    `too_large` counts what was replaced or refused for its size until then (`headrace_streams/sizes.py`), `retention`
    the records that the input's retention had deleted before they were applied.
    """

    source: int = -1
    clock: int = 0
    epoch: int = 0
    too_large: int = 0
    retention: int = 0


@dataclass
class Delta:
    """The newest values read from a changelog: `items` maps key to (source offset, value)."""

    items: dict[bytes, tuple[int, bytes | None]]
    marker: Marker
    records: int = 0

    def add(self, key: bytes, value: bytes | None, source: int) -> None:
        """Take one record, if it is newer than what is known of its key."""
        self.records += 1
        if key == MARKER_KEY:
            if value is not None and source > self.marker.source:
                self.marker = msgspec.json.decode(value, type=Marker)
            return
        known = self.items.get(key)
        if known is None or source >= known[0]:
            self.items[key] = (source, value)


def source_of(headers: Iterable[tuple[str, bytes]]) -> int:
    """The source offset in a record's headers. Raises ChangelogError if there is none."""
    for name, value in headers:
        if name == SOURCE_HEADER:
            return int.from_bytes(value, "big", signed=True)
    raise ChangelogError("changelog record without source offset")
