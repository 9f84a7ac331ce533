"""What the stream processor writes to the changelog of registration, made without Kafka from messages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from headrace_api.replica import Change
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Record
from headrace_core.state import MemoryState
from tests.support.late_writers import Writer


def message(offset: int, at: int, topic: str, payload: Any, partition: int = 0) -> Record:
    """A record of `raw`; a payload that is not bytes is sent as JSON."""
    value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    headers = (("topic", topic.encode()), ("retain", b"1"))
    return Record(partition, offset, at, topic.partition("/")[0].encode(), value, headers)


class Owner(Writer):
    """The owner of a partition of registration: its state, and the groups that its chunks append."""

    def __init__(self, config: RegistrationConfig, state: MemoryState | None = None) -> None:
        super().__init__(RegistrationStage(config), state)


def changes(groups: Iterable[list[tuple[bytes, bytes | None, int]]], start: int = 0) -> list[Change]:
    """The groups as a changelog from offset `start`."""
    return [Change(start + n, *item) for n, item in enumerate(item for group in groups for item in group)]
