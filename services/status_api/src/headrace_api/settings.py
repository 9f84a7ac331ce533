"""Settings of the status API, from the environment (`HEADRACE_API_*`), checked at start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import msgspec
from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from headrace_capacity.stores import open_store
from headrace_core.capacity.errors import CapacityConfig
from headrace_core.capacity.protocol import StoreStatus
from headrace_core.errors import ConfigError
from headrace_core.registration.config import RegistrationConfig


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

    write_wait_s: float = Field(default=10.0, gt=0, le=60)
    """How long a write waits for its answer before it is answered 504, in seconds (`registration.md` 11)."""

    capacity_store: str = ""
    """Address of the lease store for `/v1/capacity` (`headrace_capacity.stores`); empty: none."""
    capacity_token_file: Path | None = None
    """File with the token of a coordinator."""
    capacity_resources: list[str] = []
    """Resources that the metrics `headrace_capacity_*` show, also before anybody asked for them."""

    @property
    def database(self) -> Path:
        """The file of the replica."""
        return self.data_dir / "replica.db"

    @property
    def counters(self) -> Path:
        """The file of the batching stage's counters."""
        return self.data_dir / "batching.db"

    @property
    def events(self) -> Path:
        """The file of the events."""
        return self.data_dir / "events.db"

    def lease_status(self) -> Callable[[str], StoreStatus] | None:
        """How the lease store is asked; nothing is connected yet. Raises ConfigError, which names the setting."""
        if not self.capacity_store:
            return None
        try:
            token = self.capacity_token_file.read_text().strip() if self.capacity_token_file is not None else ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("capacity_token_file", f"cannot be read: {error}") from error
        try:
            return open_store(self.capacity_store, token=token).status
        except CapacityConfig as error:
            setting = "capacity_token_file" if error.field == "token" else "capacity_store"
            raise ConfigError(setting, str(error)) from error

    def registration_config(self) -> RegistrationConfig:
        """What the engine is configured with. Raises ConfigError, which names the setting."""
        unknown = sorted(set(self.registration) - {field.name for field in fields(RegistrationConfig)})
        if unknown:
            raise ConfigError(f"registration.{unknown[0]}", "there is no such setting")
        try:
            return msgspec.convert({"roots": self.roots} | self.registration, RegistrationConfig)
        except msgspec.ValidationError as error:
            raise ConfigError("registration", str(error)) from error
