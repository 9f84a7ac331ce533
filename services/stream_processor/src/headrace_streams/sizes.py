"""What the topics take, and what becomes of what they do not take (`streams.md` 1, last point).

A broker refuses a record batch above `max.message.bytes` of its topic. Whether an output or a state item is too large
is decided here from the configuration of the topics as it was read at start, never from a broker's answer, so that a
repeat decides the same:
- An emission that fits no batch of its topic becomes a dead letter `too_large` with the same `id`; the record that
  brought it about is applied as usual. It need not be that record's fault: a tick closes a batch.
- A record that wants to write a state item which no batch of the changelog takes is refused whole: it changes nothing,
  and a dead letter `too_large` with its payload is all it brings about. A state that no changelog holds cannot be.

Both are counted in the marker, so that the count is exact after any crash. A size is an upper estimate from lengths
alone; how a chunk is cut does not change it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from headrace_core.stage import Emission, Record, header
from headrace_core.state import Overlay, State

RECORD_OVERHEAD = 48
HEADER_OVERHEAD = 8
BATCH_OVERHEAD = 256
DEAD_LETTER = "dead-letter"
REPLIES = "replies"
REASON = "too_large"
PAYLOAD_BYTES = 65_536
ID_BYTES = 200
LEAST_BYTES = 16_384
"""The least `max.message.bytes` of a topic that the stream processor works with."""


def record_size(emission: Emission) -> int:
    """Upper estimate, in bytes, of the emission within a record batch."""
    size = RECORD_OVERHEAD + len(emission.key or b"") + len(emission.value or b"")
    for name, value in emission.headers:
        size += len(name) + len(value or b"") + HEADER_OVERHEAD
    return size


class Limits:
    """How large a record can be, by logical topic: `max.message.bytes` less what a batch adds."""

    def __init__(self, message_bytes: Mapping[str, int]) -> None:
        self._room = {topic: size - BATCH_OVERHEAD for topic, size in message_bytes.items()}

    def room(self, topic: str) -> int:
        """Bytes for a record in a batch of its own; of a topic that is not known, what every broker takes."""
        return self._room.get(topic, 1_000_000)


class Bounded(Overlay):
    """An overlay that notes when a primary item is written which the changelog cannot take."""

    __slots__ = ("_limit", "_primary", "too_large")

    def __init__(self, base: State, primary: bytes, room: int) -> None:
        super().__init__(base)
        self._primary = primary
        self._limit = room - RECORD_OVERHEAD - HEADER_OVERHEAD - 16
        self.too_large = 0
        """Bytes of the largest item that is too large; 0: all fit."""

    def put(self, key: bytes, value: bytes, /) -> None:
        size = len(key) + len(value)
        if size > self._limit and key[0] in self._primary:
            self.too_large = max(self.too_large, size)
        Overlay.put(self, key, value)

    def release(self) -> None:
        """The chunk is over: let go of the stage. What holds back writes holds the overlay, and the overlay it: a cycle
        that would keep the chunk's writes until the collector comes (`collector.py`)."""
        self._held.clear()


class Outgoing:
    """The emissions of a chunk, in order, each of which its topic takes; and how many had to be replaced."""

    def __init__(self, stage: str, limits: Limits) -> None:
        self.emissions: list[Emission] = []
        self.too_large = 0
        self._stage = stage
        self._limits = limits

    def check(self, record: Record, since: int) -> None:
        """Replace what is too large among the emissions from the index `since` on, those of `record`."""
        for at in range(since, len(self.emissions)):
            emission = self.emissions[at]
            if record_size(emission) > self._limits.room(emission.topic):
                self.emissions[at] = self._replaced(record, emission)
                self.too_large += 1

    def refuse(self, record: Record, size: int) -> None:
        """The dead letter of a record whose state item of `size` bytes no changelog batch takes."""
        detail = f"{self._stage}: a state item of {size} bytes would be too large for the changelog"
        ident = f"{self._stage}:{record.partition}:{record.offset}:0".encode()
        facts = _facts(record, record.headers, detail) | {"root": _text(record.key)}
        self.emissions.append(self._letter(record.key, ident, facts, record.value or b""))
        self.too_large += 1

    def _replaced(self, record: Record, emission: Emission) -> Emission:
        ident = (header(emission.headers, "id") or b"")[:ID_BYTES]
        detail = (
            f"{emission.topic}: {ident.decode(errors='replace')} of {record_size(emission)} bytes, "
            f"the topic takes {self._limits.room(emission.topic)}"
        )
        facts = _facts(record, emission.headers, detail)
        facts["root"] = None if emission.topic == REPLIES else _text((emission.key or b"").split(b"/")[0]) or None
        return self._letter(emission.key, ident, facts, emission.value or b"")

    def _letter(self, key: bytes | None, ident: bytes, facts: dict[str, Any], payload: bytes) -> Emission:
        """As much of the payload as the topic takes, at most 64 KiB; if need be without topic and key."""
        headers = (("id", ident), ("stage", self._stage.encode()))
        room, keep = self._limits.room(DEAD_LETTER), PAYLOAD_BYTES
        while True:
            letter = Emission(DEAD_LETTER, key, _document(facts, payload, keep), headers)
            if record_size(letter) <= room:
                return letter
            if keep:
                keep //= 2
            else:
                key, facts = None, facts | {"root": None, "topic": None}


def _facts(record: Record, headers: tuple[tuple[str, bytes], ...], detail: str) -> dict[str, Any]:
    receipt = header(headers, "receipt_time") or header(record.headers, "receipt_time") or b""
    receipt_ms = int(receipt) if receipt.isdigit() and len(receipt) <= 18 else record.append_ms
    topic = header(headers, "topic")
    return {
        "reason": REASON, "detail": detail, "root": None, "topic": None if topic is None else _text(topic),
        "receipt_time": receipt_ms, "lost_at": record.append_ms,
    }  # fmt: skip


def _document(facts: Mapping[str, Any], payload: bytes, keep: int) -> bytes:
    """The dead letter of `registration.md` 11: text if it is text, else Base64."""
    cut = payload[:keep]
    try:
        payload.decode()
        shown = {"payload": cut.decode(errors="ignore")}
    except UnicodeDecodeError:
        shown = {"payload_base64": base64.b64encode(cut).decode()}
    truncated = {"truncated": True} if len(payload) > keep else {}
    return msgspec.json.encode({**facts, **shown, **truncated})


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="replace")
