"""Settings of a timeline (timeline.md 2). They are part of its state: a change is a `configure` record."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from headrace_core.errors import ConfigError
from headrace_core.timeline.refusals import Refused, bad_request

MAX_MS = 2**63 - 1
"""The last instant: times are signed 64-bit milliseconds."""
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
FIXED = ("bucket_count", "partitions")


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time buffer between two topics (timeline.md 11)."""

    source: str
    target: str
    delay_ms: int


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times in ms, sizes in bytes; raises ConfigError that names the field."""

    bucket_count: int = 1024
    partitions: int = 16
    min_lead_ms: int = 5
    max_lease_ms: int = 300_000
    max_future_ms: int = 365 * DAY_MS
    max_body_bytes: int = 1_048_576
    dedup_window_ms: int = 600_000
    max_deliveries: int = 0
    parked_retention_ms: int = 14 * DAY_MS
    drift_warn_ms: int = 100
    drift_error_ms: int = 1_000
    degrade_offset_ms: int = 2_000
    max_poll: int = 500
    max_wait_ms: int = 30_000
    client_rate: int = 128
    buffer: Buffer | None = None
    events: bool = False

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            lowest = 1 if name in ("bucket_count", "partitions", "max_poll", "client_rate") else 0
            if name not in ("buffer", "events") and (type(value) is not int or not lowest <= value <= MAX_MS):
                raise ConfigError(name, f"must be a whole number from {lowest} to int64, not {value!r}")
        if self.bucket_count > 65536:
            raise ConfigError("bucket_count", "must be at most 65,536: a bucket has two bytes in its key")
        if self.bucket_count % self.partitions:
            raise ConfigError("partitions", "must divide bucket_count")

    def changed(self, changes: Any) -> Settings:
        """These settings with `changes` by name. Raises Refused: SETTING_IMMUTABLE, BAD_REQUEST."""
        if not isinstance(changes, dict) or not changes:
            raise bad_request("settings: an object with at least one setting")
        for name in FIXED:
            if name in changes and changes[name] != getattr(self, name):
                raise Refused("SETTING_IMMUTABLE", setting=name)
        try:
            return msgspec.convert(msgspec.to_builtins(self) | changes, Settings)
        except (ConfigError, msgspec.ValidationError) as error:
            raise bad_request(str(error)) from None


def encode_settings(settings: Settings) -> bytes:
    return msgspec.msgpack.encode(settings)


@lru_cache(maxsize=64)
def decode_settings(raw: bytes) -> Settings:
    """A pure function of the bytes, remembered because every record asks for it."""
    return msgspec.msgpack.decode(raw, type=Settings)
