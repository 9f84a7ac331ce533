"""A worker's memory stays where it is, however long it runs (`architecture.md`, targets; docs/bench/streams.md).

Both stages in the real worker, with messages of 1,000 devices that never stop coming: written a part at a time while
the worker is held, so that its chunks are as full as they get. What it remembers (entities, open batches, sources) is
the same after a part as after fifty, so its memory has to be, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.streams import traffic
from bench.streams.process import Streams
from bench.streams.stages import worker

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(6 * 3600)]

ENTITIES = 1_000
PART = 100_000
MOST_MIB = 400
APPLIED_S = 1_800


def follow(ours: Streams, total: int) -> None:
    """Wait until all of so many messages are through both stages. `raw` holds ticks, too; so counters are asked."""
    ours.until(lambda: ours.metric('headrace_stage{name="passed"') >= total, f"{total} routed", APPLIED_S, every_s=0.5)
    ours.until(lambda: ours.metric('headrace_stage{name="accepted"') >= total, f"{total} taken", APPLIED_S, every_s=0.5)


def peaks(ours: Streams, kafka: str, prefix: str, count: int) -> list[float]:
    """The peak of the resident memory, in MiB, during each part of `count` messages."""
    found = []
    for first in range(0, count, PART):
        Path(f"/proc/{ours.running.pid}/clear_refs").write_text("5")  # the peak begins again from what there is
        ours.hold()
        messages = traffic.telemetry(first, min(PART, count - first), ENTITIES)
        traffic.prefill(kafka, prefix + "raw", messages)
        ours.let_go()
        follow(ours, min(first + PART, count))
        found.append(ours.peak_mib)
    return found


@pytest.mark.parametrize("count", [2_000_000, 10_000_000])
def test_memory_is_flat_over_millions_of_messages(kafka: str, topic_prefix: str, tmp_path: Path, count: int) -> None:
    with worker(kafka, topic_prefix, tmp_path, "registration,batching") as ours:
        known = traffic.prefill(kafka, topic_prefix + "raw", traffic.registrations(ENTITIES))
        ours.until(lambda: ours.applied("registration") >= known, "registrations", 300)
        found = peaks(ours, kafka, topic_prefix, count)
        print("MiB, a part each:", [round(peak) for peak in found])
        third = len(found) // 3
        first, last = found[third : 2 * third], found[-third:]
        assert max(found) <= MOST_MIB
        assert sum(last) / len(last) <= 1.05 * sum(first) / len(first)
