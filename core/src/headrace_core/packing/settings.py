"""Settings of the packer (packing.md 7, table). All durations are integer milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PackingSettings:
    """`max` measurements a batch; the rest as in the table of packing.md 7. Raises `ConfigError`."""

    max: int = 500
    mode: Literal["stream", "backlog"] = "stream"
    lateness_ms: int = 1_000
    linger_ms: int = 1_000
    max_send_ms: int = 60_000
    on_reject: Literal["park", "stop"] = "park"

    def __post_init__(self) -> None:
        if self.max < 1:
            raise ConfigError("max", "must be 1 or more")
        for name in ("lateness_ms", "linger_ms", "max_send_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(name, "must be 0 or more")
        if self.mode not in ("stream", "backlog"):
            raise ConfigError("mode", "must be 'stream' or 'backlog'")
        if self.on_reject not in ("park", "stop"):
            raise ConfigError("on_reject", "must be 'park' or 'stop'")
