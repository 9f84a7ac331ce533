"""Events: what the engine tells its listeners (capacity.md 10). They are values; a front end delivers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPTIONAL_EVENTS = frozenset({"batch", "flush", "request"})
"""Groups that are put out only when `emit` names them; `flush` covers flush-start and flush-done."""


@dataclass(frozen=True, slots=True)
class Event:
    """`val` is a number, or one number for each dimension where the resource has several."""

    name: str
    val: Any = 0
    msg: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class EventLog:
    """Collects events until they are taken; never calls anybody."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def emit(self, name: str, val: Any = 0, msg: str = "", **metadata: Any) -> None:
        self._events.append(Event(name, val, msg, metadata))

    def take(self) -> list[Event]:
        """The events since the last call, oldest first."""
        taken, self._events = self._events, []
        return taken
