"""A store with an HTTP bulk interface as the destination (spark-writer.md 7): `bulk.py` over httpx.

A request that could not be connected cannot have arrived, so the store is down and the job waits. Anything that breaks
later, a time-out included, leaves every row unknown. The limit of time is for each step (connecting, sending, waiting
for a byte) and for the whole answer, so one that comes drop by drop ends too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import httpx
import msgspec

from headrace_core.errors import ConfigError
from headrace_spark.sinks import bulk
from headrace_spark.sinks.answers import Answer, all_of
from headrace_spark.sinks.callables import Context, Result
from headrace_spark.sinks.port import SinkDown
from headrace_spark.transforms.rows import IDENTITY, Keying, Row

SCHEMES: Final = ("http://", "https://")
MAX_ANSWER: Final = 64 * 1024 * 1024
_SECOND_NS: Final = 1_000_000_000


class _Late(Exception):
    """The answer did not end in time, or does not end at all."""


class BulkSink:
    """Implements `Destination`, and `LaneSink`. `url` is where bulk requests go; `charge_header` names a header of the
    answer with what the request took; `authorization_file` holds the value of the header Authorization. Raises
    `ConfigError`."""

    effects: Literal["once"] = "once"

    def __init__(
        self,
        url: str,
        *,
        timeout_ms: int = 30_000,
        charge_header: str = "",
        authorization_file: str = "",
        keying: Keying = IDENTITY,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._url = url
        self._charge_header = charge_header
        self._clock = clock
        self._keying = keying
        headers = {"Content-Type": "application/x-ndjson", "Accept": "application/json"}
        if authorization_file:
            headers["Authorization"] = _secret(Path(authorization_file))
        self._client = httpx.Client(headers=headers, timeout=timeout_ms / 1000, follow_redirects=False)

    def send(self, rows: Sequence[Row], context: Context) -> Answer:
        """See `Destination`."""
        try:
            status, headers, content = self._post(bulk.body(rows, self._keying, context.headers), context)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise SinkDown(f"no connection: {error}") from error
        except httpx.UnsupportedProtocol as error:
            raise ConfigError("sink", str(error)) from error
        except (httpx.RequestError, _Late) as error:
            return Answer(all_of(rows, "unknown", repr(error)))
        answer = bulk.read(rows, status, headers, content, self._clock(), self._keying)
        charge = bulk.charged(headers.get(self._charge_header)) if self._charge_header else None
        return msgspec.structs.replace(answer, charge=charge)

    def write(self, rows: Sequence[Row], context: Context) -> Result:
        """See `LaneSink`: the request whole, known by its id, which is the same each time it goes."""
        try:
            body, named = bulk.body(rows, headers=context.headers), {"Idempotency-Key": context.request_id}
            status, headers, content = self._post(body, context, named)
        except httpx.UnsupportedProtocol as error:
            raise ConfigError("sink", str(error)) from error
        except (httpx.RequestError, _Late) as error:
            raise SinkDown(repr(error)) from error
        answer = bulk.whole(rows, status, headers, content, self._clock())
        charge = bulk.charged(headers.get(self._charge_header)) if self._charge_header else None
        return msgspec.structs.replace(answer, charge=charge)

    def _post(
        self, body: bytes, context: Context, more: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[int, httpx.Headers, bytes]:
        named = {"X-Request-Id": context.request_id, **more}
        with self._client.stream("POST", self._url, content=body, headers=named) as got:
            found = bytearray()
            for part in got.iter_bytes():
                found += part
                if len(found) > MAX_ANSWER:
                    raise _Late(f"an answer of more than {MAX_ANSWER} bytes")
                if time.monotonic_ns() >= context.deadline_ns:
                    raise _Late("the answer took too long")
            return got.status_code, got.headers, bytes(found)

    def close(self) -> None:
        """See `Destination`."""
        self._client.close()


def _secret(file: Path) -> str:
    try:
        found = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("authorization_file", f"cannot be read: {error}") from None
    if not found or not found.isprintable() or not found.isascii():
        raise ConfigError("authorization_file", "must hold one line of printable ASCII")
    return found
