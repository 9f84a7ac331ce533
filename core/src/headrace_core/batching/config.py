"""Settings of the batcher (batching.md 3)."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_core.errors import ConfigError

HIGHEST = 10**17
"""The largest value of a setting: three million years, and with ten times that a time still fits its key."""


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """All times in milliseconds. Raises ConfigError that names the field."""

    window: int = 500
    timeout: int = 1000
    dedup_horizon: int | None = None
    max_future_skew: int | None = None
    max_lateness: int | None = None
    max_members: int = 1000
    max_batch_bytes: int = 524288
    tick_interval: int = 500

    def __post_init__(self) -> None:
        for name, lowest in (("window", 0), ("timeout", 1), ("max_members", 1), ("max_batch_bytes", 1)):
            _at_least(name, getattr(self, name), lowest)
        _at_least("tick_interval", self.tick_interval, 1)
        for name in ("dedup_horizon", "max_future_skew", "max_lateness"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 0)

    @property
    def horizon(self) -> int:
        """How long identities are remembered after their batch was emitted."""
        return max(60000, 10 * self.timeout) if self.dedup_horizon is None else self.dedup_horizon


def _at_least(name: str, value: object, lowest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= HIGHEST:
        raise ConfigError(name, f"must be a whole number from {lowest} to {HIGHEST}, not {value!r}")
