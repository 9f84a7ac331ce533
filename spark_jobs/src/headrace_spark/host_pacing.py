"""One strict ledger for all processes of a job on one host: its driver and its Python workers (capacity.md 5).

Theory: the ledger is a small file. Who wants to send takes the file's lock, waits with the lock held until its cost
fits, writes the entry and lets go, so the one at the head is never overtaken and every window of a second is within the
capacity, whoever sends. A kill -9 frees the lock and leaves the entries, so nothing is spent twice over a restart of a
worker or of the driver. Entries are kept in steps of 10 ms, rounded to the younger side, so the file stays small.

    used + cost <= C   and   now >= due - burst;   then   due = max(due, now) + cost / C

The second is the credit of capacity.md 5: work goes out evenly, a burst of 50 ms at most. Where there is no file yet,
or one of an earlier start of the machine, nobody knows what went out before: nothing goes out for a second.

The monotonic clock is one for all processes of a host, and for them alone: several hosts need leases (spark-writer.md
6).
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from headrace_core.capacity.errors import TooExpensive

SECOND_NS: Final = 1_000_000_000
STEP_NS: Final = 10_000_000
BURST_NS: Final = 50_000_000
_HEAD: Final = struct.Struct("<16sqq")  # start of the machine, due, number of entries
_ENTRY: Final = struct.Struct("<qq")  # time, cost
T = TypeVar("T")


class HostPacer:
    """Implements `Pacing`. `path` is the ledger's file, `capacity` in units per second after headroom."""

    def __init__(self, path: Path, capacity: int) -> None:
        self._path = path
        self._capacity = capacity
        self.waited_ns = 0

    def run(self, cost: int, work: Callable[[int], T]) -> T:
        """See `Pacing`. Raises what `work` raises, and `TooExpensive` for a cost above the capacity."""
        if cost > self._capacity:
            raise TooExpensive(f"cost {cost} is above the capacity of {self._capacity}")
        asked_ns = time.monotonic_ns()
        with self._locked() as file:
            due_ns, entries = self._read(file)
            at_ns = self._wait(cost, due_ns, entries)
            step_ns = -(-at_ns // STEP_NS) * STEP_NS
            kept = {at: spent for at, spent in entries.items() if at_ns - at < SECOND_NS}
            kept[step_ns] = kept.get(step_ns, 0) + cost
            self._write(file, max(due_ns, at_ns) + cost * SECOND_NS // self._capacity, kept)
        self.waited_ns += at_ns - asked_ns
        return work(at_ns)

    def used(self) -> int:
        """See `Pacing`: of all processes. Reads without the lock, which may be held for a second."""
        now_ns = time.monotonic_ns()
        found = _parse(self._path.read_bytes()) if self._path.exists() else None
        return sum(cost for at, cost in found[1].items() if now_ns - at < SECOND_NS) if found else 0

    def stop(self) -> None:
        """Nothing to end: the ledger is a file."""

    def _wait(self, cost: int, due_ns: int, entries: dict[int, int]) -> int:
        """Sleep until the cost fits; returns the moment, which is the moment of dispatch."""
        while True:
            now_ns = time.monotonic_ns()
            free_ns = max(due_ns - BURST_NS, self._room_ns(cost, entries, now_ns))
            if now_ns >= free_ns:
                return now_ns
            time.sleep((free_ns - now_ns) / SECOND_NS)

    def _room_ns(self, cost: int, entries: dict[int, int], now_ns: int) -> int:
        """When enough of the entries will be a second old."""
        young = sorted((at, spent) for at, spent in entries.items() if now_ns - at < SECOND_NS)
        over = sum(spent for _, spent in young) + cost - self._capacity
        for at, spent in young:
            if over <= 0:
                break
            over -= spent
            now_ns = max(now_ns, at + SECOND_NS)
        return now_ns

    @contextmanager
    def _locked(self) -> Iterator[int]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _read(self, file: int) -> tuple[int, dict[int, int]]:
        """(due, cost by time). A file that is new, cut or of another start of the machine counts as all spent now."""
        found = _parse(os.pread(file, 1 << 16, 0))
        if found is None:
            now_ns = time.monotonic_ns()
            found = now_ns, {now_ns: self._capacity}
            self._write(file, *found)
        return found

    def _write(self, file: int, due_ns: int, entries: dict[int, int]) -> None:
        body = b"".join(_ENTRY.pack(at, cost) for at, cost in entries.items())
        os.pwrite(file, _HEAD.pack(_machine(), due_ns, len(entries)) + body, 0)


def _parse(raw: bytes) -> tuple[int, dict[int, int]] | None:
    if len(raw) < _HEAD.size:
        return None
    machine, due_ns, count = _HEAD.unpack_from(raw)
    body = raw[_HEAD.size : _HEAD.size + count * _ENTRY.size]
    if machine != _machine() or len(body) < count * _ENTRY.size:
        return None
    return due_ns, dict(_ENTRY.iter_unpack(body))


def _machine() -> bytes:
    """Which start of the machine this is; its monotonic clock counts from there."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
