"""Settings of batcher and lease client (capacity.md 2). Durations are whole milliseconds; 0 or less means the default.

A wrong value fails at construction with CapacityConfig, whose message names the key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from headrace_core.capacity.errors import CapacityConfig
from headrace_core.capacity.events import OPTIONAL_EVENTS

MAX_HEADROOM_PERMILLE = 500
MIN_QUARANTINE_MS = 1_000


def _take_defaults(config: Any, names: Collection[str]) -> None:
    """Replace durations of 0 or less by their defaults; refuse what is not an integer."""
    for spec in fields(config):
        value = getattr(config, spec.name)
        if spec.name not in names:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise CapacityConfig(spec.name, f"must be whole milliseconds, not {value!r}")
        if value <= 0:
            object.__setattr__(config, spec.name, spec.default)


def _durations(config: Any) -> list[str]:
    return [spec.name for spec in fields(config) if spec.name.endswith("_ms")]


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CapacityConfig(name, f"must be an integer of {least} or more, not {value!r}")


@dataclass(frozen=True, slots=True)
class BatcherConfig:
    """`burst_ms` 0 = twice the flush interval; `max_concurrent_batches` 0 = no limit; `headroom` in steps of 0.001."""

    buffer_size: int = 10_000
    error_on_full: bool = False
    flush_interval_ms: int = 100
    capacity_interval_ms: int = 100
    audit_interval_ms: int = 10_000
    max_operation_ms: int = 60_000
    max_concurrent_batches: int = 0
    hold_slot_until_return: bool = False
    pacing: Literal["strict", "slice"] = "strict"
    burst_ms: int = 0
    headroom: float = 0.0
    pause_ms: int = 500
    pause_factor: float = 2
    pause_cap_ms: int = 30_000
    pause_reset_ms: int = 10_000
    pause_jitter: float = 0.2
    stall_ms: int = 30_000
    emit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _take_defaults(self, _durations(self))
        if self.burst_ms == 0:
            object.__setattr__(self, "burst_ms", 2 * self.flush_interval_ms)
        object.__setattr__(self, "emit", frozenset(self.emit))
        _check_count("buffer_size", self.buffer_size, 1)
        _check_count("max_concurrent_batches", self.max_concurrent_batches, 0)
        self._check_choices()

    def _check_choices(self) -> None:
        if self.pacing not in ("strict", "slice"):
            raise CapacityConfig("pacing", f"must be strict or slice, not {self.pacing!r}")
        if not self.emit <= OPTIONAL_EVENTS:
            raise CapacityConfig("emit", f"knows only {sorted(OPTIONAL_EVENTS)}")
        for name in ("headroom", "pause_factor", "pause_jitter"):
            if not isinstance(getattr(self, name), int | float):
                raise CapacityConfig(name, f"must be a number, not {getattr(self, name)!r}")
        if not 0 <= self.headroom_permille <= MAX_HEADROOM_PERMILLE:
            raise CapacityConfig("headroom", "must be between 0 and 0.5")
        if abs(self.headroom * 1000 - self.headroom_permille) > 1e-6:
            raise CapacityConfig("headroom", "goes in steps of 0.001")
        if self.pause_factor < 1:
            raise CapacityConfig("pause_factor", "must be 1 or more")
        if not 0 <= self.pause_jitter < 1:
            raise CapacityConfig("pause_jitter", "must be at least 0 and below 1")

    @property
    def headroom_permille(self) -> int:
        return round(self.headroom * 1000)

    @property
    def headroom_in_force(self) -> int:
        """Thousandths of the capacity left unused; slice pacing has no headroom."""
        return self.headroom_permille if self.pacing == "strict" else 0


def change_config(config: BatcherConfig, changes: Mapping[str, Any]) -> BatcherConfig:
    """`config` with other settings. Raises CapacityConfig, also for a key that does not exist."""
    known = {spec.name for spec in fields(config)}
    for name in changes:
        if name not in known:
            raise CapacityConfig(name, "no such setting")
    return replace(config, **changes)


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """Times of a lease (capacity.md 2). `for_tests` lets `quarantine_ms` be below 1000, which breaks every promise."""

    ttl_ms: int = 5_000
    renew_interval_ms: int = 1_000
    margin_ms: int = 500
    quarantine_ms: int = 1_000
    call_timeout_ms: int = 2_000
    min_sync_interval_ms: int = 100
    for_tests: bool = False

    def __post_init__(self) -> None:
        _take_defaults(self, _durations(self))
        if self.quarantine_ms < MIN_QUARANTINE_MS and not self.for_tests:
            raise CapacityConfig("quarantine_ms", f"must be {MIN_QUARANTINE_MS} or more outside tests")
        if 3 * self.renew_interval_ms > self.ttl_ms:
            raise CapacityConfig("renew_interval_ms", "must be at most a third of ttl_ms")
        if self.margin_ms >= self.ttl_ms:
            raise CapacityConfig("margin_ms", "must be below ttl_ms")


AZURE_BLOB_LEASE = LeaseConfig(ttl_ms=15_000, renew_interval_ms=5_000, margin_ms=1_000)
