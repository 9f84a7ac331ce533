"""Where the parts of a running stack listen and keep their state: the one thing that demo, doctor and status need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Addresses of one stack. URLs have no trailing slash; `capacity_per_s` is in units of the writer's cost function;
    `timeout_ms` is batching's timeout; `database` is the SQLite file that is both sink and state of the writer."""

    kafka: str
    prefix: str
    mqtt_host: str
    mqtt_port: int
    mqtt_protocol: str
    bridge_url: str
    streams_url: str
    api_url: str
    spark_url: str
    database: Path
    logs: Path
    capacity_per_s: int
    cost: str
    timeout_ms: int

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        draft = path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(self, enc_hook=str))
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Endpoints:
        """Read what `save` wrote. Raises OSError, `msgspec.ValidationError`, `msgspec.DecodeError`."""
        return msgspec.json.decode(path.read_bytes(), type=cls, dec_hook=lambda kind, value: kind(value))
