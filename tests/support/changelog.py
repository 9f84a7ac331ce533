"""What the stream processor writes to the changelog of registration, made without Kafka from messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from headrace_api.replica import Change
from headrace_core.changelog import MARKER_KEY
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record
from headrace_core.state import MemoryState, Overlay


def message(offset: int, at: int, topic: str, payload: Any, partition: int = 0) -> Record:
    """A record of `raw`; a payload that is not bytes is sent as JSON."""
    value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    headers = (("topic", topic.encode()), ("retain", b"1"))
    return Record(partition, offset, at, topic.partition("/")[0].encode(), value, headers)


class Owner:
    """The owner of a partition: its state, and the groups that its chunks append."""

    def __init__(self, config: RegistrationConfig, state: MemoryState | None = None) -> None:
        self.stage = RegistrationStage(config)
        self.state = state or MemoryState()

    def chunk(
        self, records: Iterable[Record], emit: Callable[[Emission], None] = lambda _: None
    ) -> list[tuple[bytes, bytes | None, int]]:
        """Apply one chunk; returns its group: (key, value, source)."""
        overlay = Overlay(self.state)
        last = -1
        for record in records:
            self.stage.apply(overlay, record, emit)
            last = record.offset
        for key, value in overlay.mutations.items():
            if value is None:
                self.state.delete(key)
            else:
                self.state.put(key, value)
        primary = [(k, v, last) for k, v in overlay.mutations.items() if k[0] in self.stage.primary]
        return [*primary, (MARKER_KEY, b"{}", last)]


def changes(groups: Iterable[list[tuple[bytes, bytes | None, int]]], start: int = 0) -> list[Change]:
    """The groups as a changelog from offset `start`."""
    return [Change(start + n, *item) for n, item in enumerate(item for group in groups for item in group)]
