"""Settings of the stream processor, from the environment (`HEADRACE_STREAMS_*`), frozen. Units are in the names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class StreamsSettings(BaseSettings):
    """One worker. The data directory belongs to this worker alone (RocksDB locks it)."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_STREAMS_", frozen=True)

    kafka: str = "127.0.0.1:9092"
    prefix: str = "headrace."
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8082, ge=0, le=65535)
    data_dir: Path = Path("data/streams")
    roots: dict[str, str] = {"te": "main-dev"}
    batching: dict[str, Any] = {}
    registration: dict[str, Any] = {}
    stages: str = "registration,batching"
    timelines: dict[str, Any] = Field(default={}, description="name to settings; run beside the stages")

    partitions: int = Field(default=4, ge=1, description="of topics to create; else the input's count")
    replication: int = Field(default=1, ge=1)
    chunk_records: int = Field(default=5000, ge=1)
    max_request_bytes: int = Field(default=8 * 1024 * 1024, ge=64 * 1024)
    instance: str = Field(default="", description="unique, of this data directory: a restart is assigned at once")
    session_timeout_s: float = Field(default=12.0, ge=6.0, le=60.0)
    tick_interval_ms: int = Field(default=500, ge=10)
    stall_s: float = Field(default=60.0, gt=0, description="lag and no progress for so long: exit")
    fault: str = Field(default="", description="tests: `step:count` ends the process there")

    @property
    def stage_names(self) -> list[str]:
        """Names of the stages to run, in order."""
        return [name.strip() for name in self.stages.split(",") if name.strip()]
