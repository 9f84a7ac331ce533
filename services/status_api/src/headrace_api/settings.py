"""Settings of the status API, from the environment (`HEADRACE_API_*`), checked at start."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Where the API listens and what it replicates."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_API_", frozen=True)

    kafka: str = "127.0.0.1:9092"
    """Bootstrap servers, comma separated."""
    prefix: str = "headrace."
    """Prefix of all topic names."""
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8080, ge=0, le=65535)
    data_dir: Path = Path(".headrace/api")
    """Folder of the replica. It may be deleted at any time: the replica is built anew from the changelog."""
    roots: dict[str, str] = {"te": "main-dev"}
    """Accepted roots, each with the external id of its main device: the same as the stream processor's."""
    registration: dict[str, object] = {}
    """Settings of `registration.md` 2: the same as the stream processor's."""
