"""Size: memory with many entities and open batches, and how fast the state comes back from the changelog.

One worker with both stages takes all registrations and opens the batches; then it is stopped, the database of the
registration is deleted, and a worker with that stage alone restores it. All partitions restore at the same time in one
process; the figure is all keys over the time from the first one's begin to the last one's end, by the worker's log.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.streams import traffic
from bench.streams.process import Streams
from bench.streams.stages import worker
from headrace_core.stage import Record

FOR_GOOD_MS = 10**9
PART = 100_000


def size(kafka: str, folder: Path, entities: int, open_batches: int) -> dict[str, Any]:
    """Memory in MiB, registrations/s, and the restore."""
    prefix, settings = "size.", {"BATCHING": json.dumps({"timeout": FOR_GOOD_MS, "window": 0})}
    with worker(kafka, prefix, folder, "registration,batching", **settings) as ours:
        empty = ours.rss_mib
        rate = _register(ours, kafka, prefix, entities)
        registered = ours.rss_mib
        _open(ours, kafka, prefix, entities, open_batches)
        full, peak = ours.rss_mib, ours.peak_mib
        found = ours.metric('headrace_stage{name="open_batches"')
        assert found == open_batches, f"{found} open batches"
        ours.end(gracefully=True)
    shutil.rmtree(folder / "data" / "registration")
    return {
        "entities": entities, "open_batches": open_batches, "registrations_per_s": round(rate),
        "memory_empty_mib": round(empty), "memory_entities_mib": round(registered), "memory_full_mib": round(full),
        "memory_peak_mib": round(peak), **_restore(kafka, prefix, folder),
    }  # fmt: skip


def _register(ours: Streams, kafka: str, prefix: str, entities: int) -> float:
    """All registrations, a part at a time. Returns how many a second were applied."""
    records, total, spent = traffic.registrations(entities), 0, 0.0

    def followed(stage: str) -> None:
        ours.until(lambda: ours.applied(stage) >= total, f"{total} registrations", 300, every_s=0.5)

    while total < entities:
        ours.hold()
        total += traffic.prefill(kafka, prefix + "raw", _next(records, min(PART, entities - total)))
        ours.let_go()
        started = time.monotonic()
        followed("registration")
        spent += time.monotonic() - started
    followed("batching")
    return entities / spent


def _next(records: Iterator[Record], count: int) -> Iterator[Record]:
    return (next(records) for _ in range(count))


def _open(ours: Streams, kafka: str, prefix: str, entities: int, count: int) -> None:
    """A measurement each of `count` sources."""
    chosen = traffic.devices(entities)[:count]
    at_ms = traffic.START_MS
    messages = (traffic.raw(p, root, entity + b"/m/t", b'{"time":%d,"value":1}' % (at_ms // 1000), at_ms)
                for p, root, entity in chosen)  # fmt: skip
    traffic.prefill(kafka, prefix + "raw", messages)
    opened = 'headrace_stage{name="open_batches"'
    ours.until(lambda: ours.metric(opened) >= count, f"{count} open batches", 300, every_s=0.5)


def _restore(kafka: str, prefix: str, folder: Path) -> dict[str, Any]:
    log = folder / "worker.log"
    before = log.stat().st_size
    with worker(kafka, prefix, folder, "registration") as ours:
        cpu, rss, peak = ours.cpu_s, ours.rss_mib, ours.peak_mib
    lines = [json.loads(line) for line in log.read_bytes()[before:].splitlines() if b'"restored"' in line]
    ends = [datetime.fromisoformat(line["timestamp"]).timestamp() for line in lines]
    begins = [end - line["seconds"] for end, line in zip(ends, lines, strict=True)]
    seconds, keys = max(ends) - min(begins), sum(line["keys"] for line in lines)
    return {
        "restored_keys": keys, "restored_records": sum(line["records"] for line in lines),
        "restore_s": round(seconds, 2), "restore_keys_per_s": round(keys / seconds),
        "start_cpu_s": round(cpu, 2), "memory_after_restore_mib": round(rss),
        "memory_restore_peak_mib": round(peak),
    }  # fmt: skip
