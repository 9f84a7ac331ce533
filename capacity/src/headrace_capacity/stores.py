"""A lease store by its address, for settings and command lines.

| address | store |
|---|---|
| `tcp://host:port` | a coordinator; needs its token |
| `postgresql://...` | PostgreSQL |
| `redis://...`, `rediss://...` | Redis; needs the extra `redis` |
"""

from __future__ import annotations

from typing import Protocol

from headrace_capacity.coordinator import CoordinatorStore
from headrace_capacity.postgres import PostgresStore
from headrace_core.capacity.errors import CapacityConfig
from headrace_core.capacity.protocol import LeaseStore


class ClosableStore(LeaseStore, Protocol):
    """`durable`: it keeps what was configured when it is restarted, whoever runs."""

    durable: bool

    def close(self) -> None: ...


def open_store(address: str, *, token: str = "", call_timeout_ms: int = 2_000) -> ClosableStore:
    """Nothing is connected yet. Raises `CapacityConfig`, which names `store` or `token`."""
    scheme, separator, _ = address.partition("://")
    match scheme + separator:
        case "tcp://":
            if not token:
                raise CapacityConfig("token", "a coordinator needs one")
            try:
                return CoordinatorStore(address, token, call_timeout_ms=call_timeout_ms)
            except ValueError as error:
                raise CapacityConfig("store", str(error)) from error
        case "postgresql://" | "postgres://":
            return PostgresStore(address, call_timeout_ms=call_timeout_ms)
        case "redis://" | "rediss://":
            from headrace_capacity.redis import RedisStore

            return RedisStore(address, call_timeout_ms=call_timeout_ms)
        case _:
            raise CapacityConfig(
                "store", f"must begin with tcp://, postgresql:// or redis://, not with {scheme[:20]!r}"
            )
