"""Timeline: full lives (create, poll, complete) of messages in chunks of 500 (timeline.md 17)."""

from __future__ import annotations

import time
from typing import Any

from bench.engines.measure import Figure, profile, rated
from headrace_core.state import MemoryState, Overlay
from headrace_core.timeline.engine import Engine
from headrace_core.timeline.settings import Settings

CHUNK = 500
START_MS = 1_800_000_000_000
FAR_MS = START_MS + 30 * 86_400_000
PENDING = 1_000_000
SHARE = 0.7
SETTINGS = Settings(bucket_count=64, partitions=1)

Made = tuple[Engine, MemoryState, list[int]]
"""Engine, state, and the number of chunks it has lived through."""


def live(made: Made, chunks: int) -> None:
    """`chunks` times: 500 messages are created, due at once, taken by one poll, and completed one by one."""
    engine, base, lived = made
    for _ in range(chunks):
        first = lived[0] * CHUNK
        at_ms = START_MS + lived[0] * 10
        ids = [f"job-{number:09d}" for number in range(first, first + CHUNK)]
        _chunk(engine, base, at_ms, [("create", _creation(id_, at_ms + 5)) for id_ in ids])
        answer = _chunk(engine, base, at_ms + 5, [("poll", {"consumer": "c", "lease_ms": 60_000, "limit": CHUNK})])
        assert len(answer["ids"]) == CHUNK, f"{len(answer['ids'])} of {CHUNK} were due"
        _chunk(engine, base, at_ms + 6, [("complete", {"id": id_, "consumer": "c"}) for id_ in ids])
        lived[0] += 1


def _creation(id_: str, timestamp: int) -> dict[str, Any]:
    return {"id": id_, "timestamp": timestamp, "group": "g", "body": b'{"command":"restart"}'}


def _chunk(engine: Engine, base: MemoryState, at_ms: int, commands: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Apply commands as one chunk; the last answer."""
    overlay, answer = Overlay(base), dict[str, Any]()
    for op, args in commands:
        answer = dict(engine.apply(overlay, at_ms, op, args).answer)
        assert answer["ok"], answer
    base.commit(overlay.mutations)
    return answer


def filled(pending: int) -> Made:
    """A partition with `pending` messages that wait for another month."""
    made = Engine(SETTINGS, 0), MemoryState(), [0]
    for first in range(0, pending, 50_000):
        numbers = range(first, min(pending, first + 50_000))
        commands = [("create", _creation(f"far-{number:09d}", FAR_MS + number)) for number in numbers]
        _chunk(made[0], made[1], START_MS, commands)
    live(made, 2)
    return made


def figures(*, quick: bool) -> list[Figure]:
    """Lives a second, and the share of that which is left with 1,000,000 pending messages."""
    chunks, runs = (4, 2) if quick else (20, 4)
    pending = PENDING // 100 if quick else PENDING
    empty = filled(0)
    first = rated("timeline, full lives", chunks * CHUNK, lambda made: live(made, chunks), lambda: empty,
                  target=12_000, runs=runs, unit="lives/s")  # fmt: skip
    started = time.monotonic()
    full = filled(pending)
    seconds = time.monotonic() - started
    second = rated(f"timeline, full lives, {pending:,} pending", chunks * CHUNK, lambda made: live(made, chunks),
                   lambda: full, runs=runs, unit="lives/s")  # fmt: skip
    second.notes["seconds to fill"] = round(seconds, 1)
    share = Figure(f"timeline, speed left with {pending:,} pending", second.value / first.value, "ratio", SHARE)
    if not share.met:
        share.profile = profile(lambda made: live(made, chunks), lambda: full)
    return [first, second, share]
