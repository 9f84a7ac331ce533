"""What must be known of QoS 2 after a kill: a small append-only file of packet ids (bridge.md 1.2).

Exactly once ends at Kafka, and only if a PUBLISH that the MQTT broker repeats is recognised by the next process, too:

| line | written | means |
|---|---|---|
| `begin id identity received topic` | before the record is produced | it may be in Kafka: *in doubt* |
| `done id topic partition offset` | before PUBREC | Kafka has it: a repeat is not produced |
| `end id` | before PUBCOMP | the id may be used anew |
| `lost` | when the broker has lost the session | no id means anything any more |
| `at topic partition offset` | at the head of a fresh file | every record in doubt lies at or after this offset |

A process that starts looks for the records in doubt in Kafka itself, from the last offsets that the file knows on (see
`doubts.py`), and so learns how each of them ended. The one gap: a request that Kafka takes from a dead process's
connection after that look.

A write that has returned survives kill -9. A power failure may take the file's end; then a message may come twice, or
an `end` is missing and the broker has given the id to another message. Therefore an id counts only together with the
identity of its message, and nothing is lost. A line that cannot be read is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace_core.errors import ConfigError

REWRITE_BYTES = 1024 * 1024
Place = tuple[str, int, int]  # topic, partition, offset


def identity_of(topic: bytes, payload: bytes) -> bytes:
    """16 bytes for topic and payload, the first half of what a dead letter's id shows."""
    return hashlib.sha256(len(topic).to_bytes(4, "big") + topic + payload).digest()[:16]


@dataclass
class Kept:
    """A QoS 2 message whose PUBREL did not come. `done`: Kafka has it for certain. `received` in ms."""

    identity: bytes
    received_ms: int
    topic: str
    done: bool = False

    def line(self, packet_id: int) -> str:
        """As it stands in the file."""
        return f"begin {packet_id} {self.identity.hex()} {self.received_ms} {self.topic}\n"


class Ledger:
    """The file of one client id. Raises ConfigError(`state_dir`) if it cannot be read or written."""

    def __init__(self, directory: Path, client_id: str) -> None:
        self._path = directory / f"{urllib.parse.quote(client_id, safe='')[:200]}.qos2"
        self._size = self._rewrite_at = 0
        self._file = -1
        self.kept: dict[int, Kept] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                for line in self._path.read_text(errors="replace").splitlines():
                    with contextlib.suppress(ValueError, KeyError):
                        self._read(*line.split(" "))
        except OSError as error:
            raise ConfigError("state_dir", f"{self._path}: {error}") from error

    def _read(self, word: str, *rest: str) -> None:
        match word, rest:
            case "begin", (packet_id, identity, received, topic):
                self.kept[int(packet_id)] = Kept(bytes.fromhex(identity), int(received), topic)
            case "done", (packet_id, topic, partition, offset):
                self._passed((topic, int(partition), int(offset)))
                self.kept[int(packet_id)].done = True
            case "end", (packet_id,):
                self.kept.pop(int(packet_id), None)
            case "lost", ():
                self.kept.clear()
            case "at", (topic, partition, offset):
                self._passed((topic, int(partition), int(offset) - 1))

    def _passed(self, place: Place) -> None:
        where = place[:2]
        self.offsets[where] = max(self.offsets.get(where, 0), place[2] + 1)

    @property
    def in_doubt(self) -> dict[int, Kept]:
        """Messages of which only Kafka knows whether it has them; only right after the start."""
        return {packet_id: kept for packet_id, kept in self.kept.items() if not kept.done}

    def settle(self, found: Iterable[int], offsets: dict[tuple[str, int], int]) -> None:
        """The doubts are over: Kafka has `found` and none of the others, and ends at `offsets`."""
        there = set(found)
        self.kept = {i: kept for i, kept in self.kept.items() if kept.done or i in there}
        for kept in self.kept.values():
            kept.done = True
        self.offsets |= offsets
        self._rewrite()

    def begin(self, packet_id: int, identity: bytes, received_ms: int, topic: str) -> None:
        """A QoS 2 message is going to be produced to the Kafka topic."""
        self.kept[packet_id] = kept = Kept(identity, received_ms, topic)
        self._append(kept.line(packet_id))

    def done(self, delivered: list[tuple[int, Place | None]]) -> None:
        """Kafka has the messages with these ids; where, if it is known."""
        lines = []
        for packet_id, place in delivered:
            kept = self.kept.get(packet_id)
            if kept is not None and not kept.done:
                kept.done = True
                topic, partition, offset = place or (kept.topic, 0, -1)
                self._passed((topic, partition, offset))
                lines.append(f"done {packet_id} {topic} {partition} {offset}\n")
        self._append("".join(lines))

    def end(self, packet_id: int) -> None:
        """PUBREL came."""
        if self.kept.pop(packet_id, None) is not None:
            self._append(f"end {packet_id}\n")

    def lost(self) -> None:
        """The broker has no session."""
        if self.kept:
            self.kept.clear()
            self._append("lost\n")

    def _append(self, lines: str) -> None:
        if not lines:
            return
        if self._file < 0 or self._size > self._rewrite_at:
            self._rewrite()
            return
        try:
            self._write(lines)
        except OSError as error:
            raise ConfigError("state_dir", f"{self._path}: {error}") from error

    def _write(self, lines: str) -> None:
        data = lines.encode()
        written = os.write(self._file, data)
        if written < len(data):
            raise OSError("no space left")
        self._size += written

    def _rewrite(self) -> None:
        """Put a fresh file in place of the old one, in one step."""
        lines = [f"at {topic} {partition} {offset}\n" for (topic, partition), offset in self.offsets.items()]
        for packet_id, kept in self.kept.items():
            lines.append(kept.line(packet_id))
            if kept.done:
                lines.append(f"done {packet_id} {kept.topic} 0 -1\n")
        try:
            fresh = self._path.with_name(self._path.name + ".new")
            self.close()
            self._file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            self._size = 0
            self._write("".join(lines))
            self._rewrite_at = REWRITE_BYTES + 2 * self._size
            fresh.replace(self._path)
        except OSError as error:
            raise ConfigError("state_dir", f"{self._path}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
