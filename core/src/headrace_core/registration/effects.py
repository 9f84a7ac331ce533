"""What the engine puts out, in order, as values (registration.md 11). An entity is named by root and topic id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_core.registration.message import Message


@dataclass(frozen=True, slots=True)
class Registered:
    root: str
    entity: str
    document: Mapping[str, Any]
    automatic: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """The main device of a root is known from its first record on; nobody registered it."""

    root: str
    entity: str
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TwinChanged:
    """`value` None: the key is removed."""

    root: str
    entity: str
    key: str
    value: Any


@dataclass(frozen=True, slots=True)
class Updated:
    """`changed` lists `@parent`, `@health`, in this order."""

    root: str
    entity: str
    changed: tuple[str, ...]
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Passed:
    """A message of a registered entity is passed on unchanged."""

    root: str
    entity: str
    channel: str
    message: Message


@dataclass(frozen=True, slots=True)
class Cleared:
    """The retained message on `topic` is emptied."""

    root: str
    topic: str


@dataclass(frozen=True, slots=True)
class Removed:
    root: str
    entity: str


@dataclass(frozen=True, slots=True)
class Published:
    """For the bridge: publish `payload` on `topic`, retained; empty clears."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """A message is refused, lost or discarded; `root` None if its topic names none that is accepted."""

    message: Message
    root: str | None
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The status of an entity may have changed; `document` None: nothing is known of it any more.

    `detail` says more about the document's `last_error`.
    """

    root: str
    entity: str
    document: Mapping[str, Any] | None
    detail: str = ""


Effect = Opened | Registered | TwinChanged | Updated | Passed | Cleared | Removed | Published | Dropped | StatusChanged
