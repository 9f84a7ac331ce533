"""A chunk that is over is freed at once, not by the collector of cycles.

What held back a chunk's writes (`Overlay.hold`) held the overlay and was held by it. 200,000 objects of such chunks,
with all that they had written, waited for the collector; it took 0.3 s of processor time every 10 s, and all that came
meanwhile was late by it (docs/bench/streams.md).
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.changelog import Marker
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record
from headrace_streams.faults import Faults
from headrace_streams.reads import Reads
from headrace_streams.runner import Dropped, PartitionRunner, Surroundings
from headrace_streams.sizes import Bounded, Limits
from headrace_streams.stages import StageSpec
from headrace_streams.store import RocksState

CHUNKS, RECORDS = 20, 10
USUAL, SMALL = 1_000_000, 16_384


class Outlet:
    """Takes everything; a changelog batch has `room` bytes."""

    def __init__(self, room: int) -> None:
        self.limits = Limits({"registration.changelog": room, "batching.changelog": room})
        self.largest = 0

    def batch_bytes(self, topic: str) -> int:
        return self.limits.room(topic)

    async def emit(self, emissions: Sequence[Emission], _: int) -> None:
        pass

    async def changelog(self, _: str, __: int, mutations: Mapping[bytes, bytes | None], ___: Marker) -> int:
        self.largest = max(self.largest, len(mutations))
        return 1


def telemetry(offset: int, size: int) -> Record:
    """As the bridge writes it to `raw` and, in its headers, as registration routes it."""
    headers = (
        ("kind", b"data"), ("receipt_time", b"%d" % offset), ("id", b"registration:0:%d:0" % offset),
        ("entity", b"te/device/a%d//" % offset), ("topic", b"te/device/a%d///m/t" % offset), ("channel", b"m/t"),
        ("qos", b"1"), ("retain", b"0"), ("dup", b"0"), ("received", b"1000"),
    )  # fmt: skip
    return Record(0, offset, 1_000, b"te", json.dumps({"time": 1, "v": "x" * size}).encode(), headers)


def alive() -> int:
    """Overlays that the collector knows of and has not been asked to free."""
    return sum(isinstance(found, Bounded) for found in gc.get_objects())


@pytest.fixture
def left_to_itself() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def apply(runner: PartitionRunner, owned: bool, size: int) -> None:
    for chunk in range(CHUNKS):
        try:
            await runner._apply_chunk([telemetry(chunk * RECORDS + at, size) for at in range(RECORDS)])
        except Dropped:
            assert not owned


@pytest.mark.parametrize("make", [
    lambda: BatchingStage(BatchingConfig(timeout=100)), lambda: RegistrationStage(RegistrationConfig()),
], ids=["batching", "registration"])  # fmt: skip
@pytest.mark.parametrize(("room", "owned"), [(USUAL, True), (SMALL, True), (USUAL, False)],
                         ids=["usual", "halved", "dropped"])  # fmt: skip
@pytest.mark.usefixtures("left_to_itself")
def test_of_twenty_chunks_at_most_the_last_is_left(tmp_path: Path, make: Callable[[], Any], room: int,
                                                   owned: bool) -> None:  # fmt: skip
    outlet: Any = Outlet(room)
    around = Surroundings(
        "", "", tmp_path, outlet, Faults(""), owns=lambda: owned, epoch=lambda: 1, seek=None, fatal=None
    )  # type: ignore[arg-type]
    runner = PartitionRunner(StageSpec(make().name, "raw", (), make), 0, around)
    runner.state = RocksState(tmp_path / "db")
    runner.reads = Reads(runner.state)
    before = alive()
    asyncio.run(apply(runner, owned, 5_000 if room == SMALL else 10))
    assert alive() - before <= 1
    assert (runner.state.position.marker.source == CHUNKS * RECORDS - 1) == owned
    assert (outlet.largest > 0) == owned
    runner.state.close()
