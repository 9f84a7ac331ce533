"""What the engine puts out, in order, as values (registration.md 11). An entity is named by root and topic id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headrace_core.registration.message import Message


class Registered(Struct, frozen=True):
    root: str
    entity: str
    document: Mapping[str, Any]
    automatic: bool


class Opened(Struct, frozen=True):
    """The main device of a root is known from its first record on; nobody registered it."""

    root: str
    entity: str
    document: Mapping[str, Any]


class TwinChanged(Struct, frozen=True):
    """`value` None: the key is removed."""

    root: str
    entity: str
    key: str
    value: Any


class Updated(Struct, frozen=True):
    """`changed` lists `@parent`, `@health`, in this order."""

    root: str
    entity: str
    changed: tuple[str, ...]
    document: Mapping[str, Any]


class Passed(Struct, frozen=True, gc=False):
    """A message of a registered entity is passed on unchanged."""

    root: str
    entity: str
    channel: str
    message: Message


class Cleared(Struct, frozen=True):
    """The retained message on `topic` is emptied."""

    root: str
    topic: str


class Removed(Struct, frozen=True):
    root: str
    entity: str


class Published(Struct, frozen=True):
    """For the bridge: publish `payload` on `topic`, retained; empty clears."""

    topic: str
    payload: bytes


class Dropped(Struct, frozen=True, gc=False):
    """A message is refused, lost or discarded; `root` None if its topic names none that is accepted."""

    message: Message
    root: str | None
    reason: str
    detail: str


class StatusChanged(Struct, frozen=True, gc=False):
    """The status of an entity may have changed; `document` None: nothing is known of it any more.

    `detail` says more about the document's `last_error`.
    """

    root: str
    entity: str
    document: dict[str, Any] | None
    detail: str = ""


Effect = Opened | Registered | TwinChanged | Updated | Passed | Cleared | Removed | Published | Dropped | StatusChanged
