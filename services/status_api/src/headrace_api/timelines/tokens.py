"""What clients hand back and do not look into: lease ids and cursors; and the ids that this service makes (8.4, 17)."""

from __future__ import annotations

import base64
import secrets
import time
import uuid
from typing import Any, NamedTuple, TypeVar

import msgspec

from headrace_core.timeline.refusals import Refused, bad_request

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:headrace:timeline")
MOST_CHARACTERS = 4_096


class Lease(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a lease id says; `version` is that of the grant (6.5)."""

    partition: int
    id: str
    version: int


class Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a list goes on: a partition and its own cursor; `filters` is what the list was asked for."""

    partition: int
    after: str | None
    filters: str


T = TypeVar("T", Lease, Cursor)


def written(token: Lease | Cursor) -> str:
    """As clients see it; in a URL it needs no encoding."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(token)).decode().rstrip("=")


def read(text: str, kind: type[T], name: str) -> T:
    """The token. Raises Refused BAD_REQUEST for what is none of ours."""
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(text)
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.msgpack.decode(raw, type=kind)
    except (ValueError, msgspec.DecodeError):
        raise bad_request(f"{name}: not one of ours") from None


def lease_id(text: str, partitions: int) -> Lease:
    """A lease id. Raises Refused BAD_REQUEST."""
    found = read(text, Lease, "lease_id")
    if not 0 <= found.partition < partitions or found.version < 1:
        raise bad_request("lease_id: not one of ours")
    return found


class Maker(NamedTuple):
    """Makes message ids: the same one for the same group and key, else a new one (8.4)."""

    timeline: str

    def make(self, group: str, key: str | None) -> str:
        if key is None:
            return str(uuid7())
        return str(uuid.uuid5(NAMESPACE, "\0".join((self.timeline, group, key))))


def uuid7() -> uuid.UUID:
    """RFC 9562, 5.7: milliseconds, then random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    return uuid.UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def digest(filters: dict[str, Any]) -> str:
    """What tells lists apart: a cursor of one is none of another."""
    return base64.b85encode(msgspec.msgpack.encode(sorted(filters.items()))).decode()


__all__ = ["Cursor", "Lease", "Maker", "Refused", "digest", "lease_id", "read", "uuid7", "written"]
