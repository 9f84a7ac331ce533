"""Settings of the registration engine (registration.md 2). Sizes in bytes, times in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_core.errors import ConfigError

MAIN = "device/main//"
"""Topic id of the main device of every root."""
HIGHEST_MS = 10**17
"""The longest time of a setting: three million years, and its sum with a receipt time still fits 8 bytes."""


@dataclass(frozen=True, slots=True)
class RegistrationConfig:
    """All members as in registration.md 2; `roots` maps a root to the external id of its main device.

    Raises ConfigError, which names the field.
    """

    roots: Mapping[str, str] = field(default_factory=lambda: {"te": "main-dev"})
    auto_register: bool = True
    infer_type: bool = True
    id_alias: bool = True
    telemetry_cache_size: int = 100
    telemetry_cache_per_entity: int | None = None
    telemetry_cache_bytes: int = 1_048_576
    metadata_cache_bytes: int = 1_048_576
    pending_ttl: int = 3_600_000
    status_retention: int = 86_400_000
    status_history: int = 10_000

    def __post_init__(self) -> None:
        if len(set(self.roots.values())) != len(self.roots):
            raise ConfigError("roots", "external ids of main devices must differ")
        for root, main_id in self.roots.items():
            if not root or any(c in root for c in "/+#\0"):
                raise ConfigError("roots", f"{root!r} is not a topic segment")
            if not main_id or any(c in main_id for c in "/+#"):
                raise ConfigError("roots", f"{main_id!r} is not an external id")
        for name in ("telemetry_cache_size", "telemetry_cache_bytes", "metadata_cache_bytes", "status_history"):
            if getattr(self, name) < 0:
                raise ConfigError(name, "must be 0 or more")
        for name in ("pending_ttl", "status_retention"):
            if not 1 <= getattr(self, name) <= HIGHEST_MS:
                raise ConfigError(name, f"must be 1 to {HIGHEST_MS}")
        if self.telemetry_cache_per_entity is not None and self.telemetry_cache_per_entity < 0:
            raise ConfigError("telemetry_cache_per_entity", "must be 0 or more, or null")
