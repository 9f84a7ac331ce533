"""Where the parts of a running stack listen and keep their state: the one thing that demo, doctor and status need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True)
class Job:
    """A Spark job of the stack: its name in the ledger, its table in the datastore, and the service that runs it."""

    name: str
    table: str
    service: str


WRITER = Job("writer", "measurements", "spark")
ARCHIVE = Job("archive", "archive", "archive")


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Addresses of one stack. URLs have no trailing slash; `capacity_per_s` is in units of the writer's cost function;
    `timeout_ms` is batching's timeout; `database` is the SQLite file that is both sink and state of the jobs;
    `lease_store`, `lease_token_file` and `resource` say where they lease its capacity. `archive_url` is empty where
    the second job does not run."""

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
    lease_store: str
    lease_token_file: Path
    resource: str
    archive_url: str = ""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The Spark jobs that run."""
        return (WRITER, ARCHIVE) if self.archive_url else (WRITER,)

    @property
    def capacity_command(self) -> str:
        """What shows the capacity's state."""
        return (
            f"headrace capacity status {self.resource} --store {self.lease_store} --token-file {self.lease_token_file}"
        )

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        draft = path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(self, enc_hook=str))
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Endpoints:
        """Read what `save` wrote. Raises OSError, `msgspec.ValidationError`, `msgspec.DecodeError`."""
        return msgspec.json.decode(path.read_bytes(), type=cls, dec_hook=lambda kind, value: kind(value))
