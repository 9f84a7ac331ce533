"""Settings of the bridge, frozen: from the environment (`HEADRACE_BRIDGE_*`), and below that from the TOML file that
HEADRACE_BRIDGE_CONFIG names. Units are in the names; secrets are in files of their own (bridge.md 6).
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from headrace_core.errors import ConfigError

PREFIX, FILE = "HEADRACE_BRIDGE_", "HEADRACE_BRIDGE_CONFIG"
DAY_S = 86_400
NAMED_LEVEL = re.compile(r"\{[A-Za-z_][A-Za-z0-9_]*\}")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class BridgeSettings(BaseSettings):
    """One bridge. `client_id` is its identity towards the MQTT broker: never the same for two that run at once."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    mqtt_host: str = "127.0.0.1"
    mqtt_port: int = Field(default=1883, ge=1, le=65535)
    mqtt_version: Literal["5", "3.1.1"] = "5"
    mqtt_user: str | None = None
    mqtt_password_file: Path | None = None
    tls: bool = False
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    tls_server_name: str | None = None
    client_id: str = Field(default="headrace-bridge", min_length=1, max_length=1024)
    filters: list[str] | dict[str, int] = Field(default=["te/#"], description="filters, or filters with their QoS")
    shared_subscriptions: bool = Field(default=False, description="allow $share/...: no order per topic any more")
    keep_alive_s: int = Field(default=30, ge=1, le=65535)
    session_expiry_s: int = Field(default=7 * DAY_S, ge=DAY_S, le=0xFFFFFFFF)
    state_dir: Path = Field(default=Path("data/bridge"), description="remembers filters, to unsubscribe removed ones")

    kafka: str = "127.0.0.1:9092"
    kafka_tls: bool = False
    kafka_tls_ca_file: Path | None = None
    kafka_tls_cert_file: Path | None = None
    kafka_tls_key_file: Path | None = None
    kafka_sasl: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""
    kafka_user: str | None = None
    kafka_password_file: Path | None = None
    kafka_options: dict[str, str] = Field(default={}, description="any other of librdkafka; goes before the above")
    prefix: str = Field(default="headrace.", pattern=r"^[A-Za-z0-9._-]{0,100}$")
    root_pattern: str = "{root}/#"
    routes: dict[str, str] = Field(default={}, description="MQTT filter to logical topic name, instead of raw")

    max_in_flight: int = Field(default=1000, ge=1, le=65535)
    max_in_flight_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    outbound: bool = True
    outbound_window: int = Field(default=100, ge=1, le=10_000)
    stop_s: float = Field(default=10.0, ge=0)
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8081, ge=0, le=65535)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, from_file())

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        pairs = [
            ("mqtt_password_file", self.mqtt_password_file, "mqtt_user", self.mqtt_user),
            ("tls_key_file", self.tls_key_file, "tls_cert_file", self.tls_cert_file),
            ("tls_cert_file", self.tls_cert_file, "tls", self.tls),
            ("tls_ca_file", self.tls_ca_file, "tls", self.tls),
            ("kafka_tls_key_file", self.kafka_tls_key_file, "kafka_tls_cert_file", self.kafka_tls_cert_file),
            ("kafka_tls_cert_file", self.kafka_tls_cert_file, "kafka_tls", self.kafka_tls),
            ("kafka_tls_ca_file", self.kafka_tls_ca_file, "kafka_tls", self.kafka_tls),
            ("kafka_sasl", self.kafka_sasl, "kafka_user", self.kafka_user),
            ("kafka_sasl", self.kafka_sasl, "kafka_password_file", self.kafka_password_file),
            ("kafka_user", self.kafka_user, "kafka_sasl", self.kafka_sasl or "sasl.mechanism" in self.kafka_options),
        ]
        for name, value, needed, there in pairs:
            if value and not there:
                raise ValueError(f"{name} needs {needed}")
        if not self.shared_subscriptions and (shared := [name for name in self.subscriptions if is_shared(name)]):
            raise ValueError(f"filters: {shared[0]!r} needs shared_subscriptions = true (it gives up order per topic)")
        return self

    @field_validator("filters")
    @classmethod
    def _filters(cls, value: list[str] | dict[str, int]) -> list[str] | dict[str, int]:
        if not value:
            raise ValueError("at least one filter")
        for name in value:
            if problem := filter_problem(name):
                raise ValueError(f"{name!r}: {problem}")
        if isinstance(value, dict) and any(qos not in (0, 1, 2) for qos in value.values()):
            raise ValueError("QoS is 0, 1 or 2")
        return value

    @field_validator("root_pattern")
    @classmethod
    def _root_pattern(cls, value: str) -> str:
        if value.split("/").count("{root}") != 1:
            raise ValueError("one level must be {root}")
        form = as_filter(value)
        if "{" in form or "}" in form:
            raise ValueError("a named part is a level of its own: {site}/{root}/#")
        if problem := filter_problem(form):
            raise ValueError(problem)
        return value

    @field_validator("routes")
    @classmethod
    def _routes(cls, value: dict[str, str]) -> dict[str, str]:
        for name, topic in value.items():
            shared = "a route has no $share" if name.startswith("$share/") else ""
            if problem := shared or filter_problem(name):
                raise ValueError(f"{name!r}: {problem}")
            if not TOPIC_NAME.fullmatch(topic):
                raise ValueError(f"{topic!r} is not the name of a Kafka topic")
        return value

    @property
    def subscriptions(self) -> dict[str, int]:
        """Filter to QoS, 1 where nothing else is said."""
        return self.filters if isinstance(self.filters, dict) else dict.fromkeys(self.filters, 1)


def from_file() -> dict[str, object]:
    """The TOML file's settings; none if there is none. Raises ConfigError(`config`)."""
    path = os.environ.get(FILE)
    if not path:
        return {}
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        raise ConfigError("config", f"{path}: {error}") from error


def in_one_line(error: ValidationError) -> str:
    """What is wrong, each with the field's name, never with the value of one (it may be a secret)."""
    problems = []
    for problem in error.errors(include_input=False, include_url=False):
        field = ".".join(str(part) for part in problem["loc"] if part not in ("list[str]", "dict[str,int]"))
        message = problem["msg"].removeprefix("Value error, ")
        problems.append(f"{field}: {message}" if field else message)
    return "; ".join(dict.fromkeys(problems))


def as_filter(pattern: str) -> str:
    """The filter of the topics that have a pattern's form: a named part is any one level (bridge.md 2)."""
    return "/".join("+" if NAMED_LEVEL.fullmatch(level) else level for level in pattern.split("/"))


def is_shared(name: str) -> bool:
    """Whether a filter is a shared subscription's."""
    return name.startswith("$share/")


def filter_problem(name: str) -> str:
    """What is wrong with a topic filter, empty if nothing (bridge.md 1.6: `$` topics are never taken)."""
    levels = name.split("/")
    if levels[0] == "$share":
        levels = levels[2:]
        if not levels or not name.split("/")[1]:
            return "$share/<group>/<filter> is the form"
    if levels[0].startswith("$"):
        return "topics that begin with $ are never taken"
    if not name or len(name.encode()) > 65535 or "\0" in name:
        return "1 to 65,535 bytes without NUL"
    if any(("#" in level and level != "#") or ("+" in level and level != "+") for level in levels):
        return "a wildcard is a level of its own"
    if "#" in levels[:-1]:
        return "# is the last level"
    return ""
