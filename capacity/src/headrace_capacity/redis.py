"""Leases in Redis (capacity.md 16). Needs the extra `headrace-capacity[redis]`.

One script reads state and the server's `TIME`; core decides; a second script writes the next state if no other call
came between, else the call begins again. So each call is one atomic step by the server's clock, without the rules of
the protocol being written a second time in Lua. That the time is read a moment before the write is safe: leases then
end a moment early.

A Redis without persistence forgets at a restart, and nobody can tell that from a first start: a resource that is new
here *learns* for ttl + quarantine (6 s), in which it honours what owners claim to hold and grants nothing.
`cold=True` says that no owner of an earlier life can be left, and skips that.

**A failover can grant a partition twice**: replication is asynchronous, so a replica that takes over may not have the
last grants. Where that must not happen, take PostgreSQL.
"""

from __future__ import annotations

from typing import Any

from redis import Redis

from headrace_capacity.calls import Result
from headrace_capacity.kept import KeptStore, Step, opened
from headrace_core.capacity.errors import UnknownResource
from headrace_core.capacity.protocol import ResourceConfig

READ = "return {redis.call('HMGET', KEYS[1], 'version', 'state'), redis.call('TIME')}"
OPEN = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'version', '1', 'state', ARGV[1])
return 1
"""
SWAP = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', string.format('%d', ARGV[1] + 1), 'state', ARGV[2])
return 1
"""


class RedisStore(KeptStore[Redis]):
    """`LeaseStore` at `url` (`redis://host:port/db`). A resource is one hash, `<prefix><resource>`, without expiry."""

    durable = False  # only if that server persists

    def __init__(
        self, url: str, *, prefix: str = "hr:lease:", cold: bool = False, call_timeout_ms: int = 2_000
    ) -> None:
        self._url, self._prefix, self._cold = url, prefix, cold
        super().__init__("the lease store in Redis", call_timeout_ms)

    def _create(self, connection: Redis, resource: ResourceConfig) -> None:
        key = self._prefix + resource.resource
        _, _, now_ms = _read(connection, key)
        connection.eval(OPEN, 1, key, opened(resource, now_ms, learning=not self._cold))

    def _step(self, connection: Redis, resource: str, step: Step[Result]) -> Result:
        while True:
            version, kept, now_ms = self._found(connection, resource)
            after, result = step(kept, now_ms)
            if after is None or connection.eval(SWAP, 1, self._prefix + resource, version, after) == 1:
                return result

    def _look(self, connection: Redis, resource: str) -> tuple[bytes, int]:
        return self._found(connection, resource)[1:]

    def _found(self, redis: Redis, resource: str) -> tuple[bytes, bytes, int]:
        version, kept, now_ms = _read(redis, self._prefix + resource)
        if version is None or kept is None:
            raise UnknownResource(resource)
        return version, kept, now_ms

    def _connect(self) -> Redis:
        limit_s = self._timeout_ms / 1000
        return Redis.from_url(self._url, socket_timeout=limit_s, socket_connect_timeout=limit_s, max_connections=1)


def _read(redis: Redis, key: str) -> tuple[bytes | None, bytes | None, int]:
    """Version and state, None where there is none, and the server's time in ms."""
    answer: Any = redis.eval(READ, 1, key)
    (version, kept), (seconds, micros) = answer
    return version, kept, int(seconds) * 1000 + int(micros) // 1000
