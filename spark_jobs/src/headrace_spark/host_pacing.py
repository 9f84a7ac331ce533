"""One strict ledger for all processes of a job on one host: its driver and its Python workers (capacity.md 5).

Theory: the ledger is a small file. Who wants to send takes the file's lock, waits with the lock held until its cost
fits, writes the entry and lets go, so the one at the head is never overtaken and every window of a second is within the
capacity, whoever sends. A kill -9 frees the lock and leaves the entries, so nothing is spent twice over a restart of a
worker or of the driver. Entries are kept in steps of 10 ms, rounded to the younger side, so the file stays small.

    used + cost <= C   and   now >= due - burst;   then   due = max(due, now) + cost / C

The second is the credit of capacity.md 5: work goes out evenly, a burst of 50 ms at most. Where there is no file yet,
or one of an earlier start of the machine, nobody knows what went out before: nothing goes out for a second.

A pause that the destination asks for stands in a file beside it, so that it holds for all of them, also while one of
them waits with the lock. What the destination charged above the cost is an entry more, as late as it is known.

Nothing that waits for longer than `max_wait_ms` while nothing goes out anywhere will go out: it fails (`Stalled`).

The monotonic clock is one for all processes of a host, and for them alone: several hosts need leases (spark-writer.md
6).
"""

from __future__ import annotations

import fcntl
import functools
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeVar

from headrace_core.capacity.config import BatcherConfig
from headrace_core.capacity.errors import TooExpensive
from headrace_core.capacity.pause import PauseRule
from headrace_spark.exits import Stalled

SECOND_NS: Final = 1_000_000_000
STEP_NS: Final = 10_000_000
BURST_NS: Final = 50_000_000
_HEAD: Final = struct.Struct("<16sqq")  # start of the machine, due, number of entries
_ENTRY: Final = struct.Struct("<qq")  # time, cost
_PAUSE: Final = struct.Struct("<16sq")  # start of the machine, end of the pause
_MS_NS: Final = 1_000_000
MAX_WAIT_MS: Final = 600_000
T = TypeVar("T")


class HostPacer:
    """Implements `PausingPacing`. `path` is the ledger's file, `capacity` in units per second after headroom,
    `max_wait_ms` how long anything waits while nothing goes out. Its callers may be several threads."""

    everywhere = True
    """`used` tells of all processes of the job."""

    def __init__(self, path: Path, capacity: int, max_wait_ms: int = MAX_WAIT_MS) -> None:
        self._path = path
        self._capacity = capacity
        self._max_wait_ns = max_wait_ms * _MS_NS
        self._rule, self._turn = PauseRule(BatcherConfig(), random.random), threading.Lock()
        self._until_ns = 0
        self.waited_ns = 0

    def run(self, cost: int, work: Callable[[int], T]) -> T:
        """See `Pacing`. Raises what `work` raises, `TooExpensive` for a cost above the capacity, and `Stalled`."""
        if cost > self._capacity:
            raise TooExpensive(f"cost {cost} is above the capacity of {self._capacity}")
        asked_ns = time.monotonic_ns()
        with self._locked() as file:
            due_ns, entries = self._read(file)
            at_ns = self._wait(cost, due_ns, entries, asked_ns)
            self._enter(file, due_ns, entries, at_ns, cost)
        self.waited_ns += at_ns - asked_ns
        return work(at_ns)

    def settled(self, cost: int, work: Callable[[int], T], charge: Callable[[T], int | None]) -> T:
        """See `PausingPacing`. Raises as `run`."""
        found = self.run(cost, work)
        more = (charge(found) or 0) - cost
        if more > 0:
            with self._locked() as file:
                self._enter(file, *self._read(file), time.monotonic_ns(), more)
        return found

    def pause(self, retry_after_ms: int | None, scope: Literal["instance", "resource"]) -> None:
        """See `PausingPacing`; `resource` is all processes of the job on this host."""
        with self._turn:
            now_ms = time.monotonic_ns() // _MS_NS
            self._rule.resume(now_ms)
            self._rule.ask(now_ms + 1, retry_after_ms)  # the ms that began is not whole: no pause is shorter than asked
            self._until_ns = max(self._until_ns, (self._rule.until_ms or 0) * _MS_NS)
        if scope == "resource":
            with self._locked(self._pauses) as file:
                until_ns = max(self._until_ns, _end(os.pread(file, _PAUSE.size, 0)))
                os.pwrite(file, _PAUSE.pack(_machine(), until_ns), 0)

    def answered(self, *, well: bool) -> None:
        """See `PausingPacing`: a capacity that is this job's alone has nobody to tell."""

    def used(self) -> int:
        """See `Pacing`: of all processes. Reads without the lock, which may be held for a second."""
        now_ns = time.monotonic_ns()
        found = _parse(self._path.read_bytes()) if self._path.exists() else None
        return sum(cost for at, cost in found[1].items() if now_ns - at < SECOND_NS) if found else 0

    def stop(self) -> None:
        """Nothing to end: the ledger is a file."""

    def _wait(self, cost: int, due_ns: int, entries: dict[int, int], asked_ns: int) -> int:
        """Sleep until the cost fits and no pause holds; returns the moment, which is the moment of dispatch."""
        while True:
            now_ns, paused_ns = time.monotonic_ns(), self._paused_ns()
            free_ns = max(due_ns - BURST_NS, self._room_ns(cost, entries, now_ns), paused_ns)
            if now_ns >= free_ns:
                return now_ns
            last_ns = max([asked_ns, *(min(at, now_ns) for at in entries)]) + self._max_wait_ns
            if now_ns >= last_ns:
                reason = "paused" if paused_ns > now_ns else "capacity"
                raise Stalled(f"nothing has gone out for {self._max_wait_ns // _MS_NS} ms (max_wait_ms): {reason}")
            time.sleep((min(free_ns, last_ns) - now_ns) / SECOND_NS)

    def _enter(self, file: int, due_ns: int, entries: dict[int, int], at_ns: int, cost: int) -> None:
        step_ns = -(-at_ns // STEP_NS) * STEP_NS
        kept = {at: spent for at, spent in entries.items() if at_ns - at < SECOND_NS}
        kept[step_ns] = kept.get(step_ns, 0) + cost
        self._write(file, max(due_ns, at_ns) + cost * SECOND_NS // self._capacity, kept)

    @property
    def _pauses(self) -> Path:
        return self._path.with_name(f"{self._path.name}.pause")

    def _paused_ns(self) -> int:
        """When the pause is over, of this process or of all; now or earlier if none holds."""
        told = self._pauses.read_bytes() if self._pauses.exists() else b""
        return max(self._until_ns, _end(told))

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
    def _locked(self, path: Path | None = None) -> Iterator[int]:
        file = os.open(path or self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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


def _end(raw: bytes) -> int:
    """When a pause ends; 0 for none, or one of another start of the machine."""
    machine, until_ns = _PAUSE.unpack(raw) if len(raw) == _PAUSE.size else (b"", 0)
    return until_ns if machine == _machine() else 0


@functools.cache
def _machine() -> bytes:
    """Which start of the machine this is; its monotonic clock counts from there."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
