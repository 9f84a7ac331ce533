"""What a stage holds back until the end of a chunk can be too large for the changelog: refused, not a crash loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.changelog import Marker
from headrace_core.stage import Emission, Record
from headrace_streams.faults import Faults
from headrace_streams.reads import Reads
from headrace_streams.runner import PartitionRunner, Surroundings
from headrace_streams.sizes import Limits
from headrace_streams.stages import StageSpec
from headrace_streams.store import RocksState

ROOM = 32_768
TYPES = 6


class Outlet:
    """Takes what a real one would write."""

    limits = Limits({"batching.changelog": ROOM})

    def __init__(self) -> None:
        self.emissions: list[Emission] = []
        self.changelog_items = 0

    def batch_bytes(self, topic: str) -> int:
        return self.limits.room(topic)

    async def emit(self, emissions: Sequence[Emission], _: int) -> None:
        self.emissions += emissions

    async def changelog(self, _: str, __: int, mutations: Mapping[bytes, bytes | None], ___: Marker) -> int:
        assert all(len(key) + len(value or b"") < ROOM for key, value in mutations.items())
        self.changelog_items += len(mutations) + 1
        return self.changelog_items


def measurement(offset: int) -> Record:
    """10 KB of one type; after three of them a batch is larger than the changelog takes."""
    headers = (
        ("kind", b"data"), ("receipt_time", b"1000"), ("id", b"registration:0:%d:0" % offset),
        ("entity", b"te/device/a//"), ("topic", b"te/device/a///m/t%d" % offset), ("channel", b"m/t%d" % offset),
    )  # fmt: skip
    return Record(0, offset, 1_000, b"te", json.dumps({"time": 1, "v": "x" * 10_000}).encode(), headers)


@pytest.mark.parametrize("chunk", [1, 2, TYPES])
def test_a_batch_that_grows_too_large_takes_no_more_members(tmp_path: Path, chunk: int) -> None:
    outlet: Any = Outlet()
    around = Surroundings(
        "", "", tmp_path, outlet, Faults(""), owns=lambda: True, epoch=lambda: 1, seek=None, fatal=None
    )  # type: ignore[arg-type]
    spec = StageSpec("batching", "routed", (), lambda: BatchingStage(BatchingConfig()))
    runner = PartitionRunner(spec, 0, around)
    runner.state = RocksState(tmp_path / "db")
    runner.reads = Reads(runner.state)
    records = [measurement(offset) for offset in range(TYPES)]
    for at in range(0, TYPES, chunk):
        asyncio.run(runner._apply_chunk(records[at : at + chunk]))
    assert runner.state.position.marker == Marker(source=TYPES - 1, clock=1_000, epoch=1, too_large=TYPES - 3)
    letters = [json.loads(one.value or b"") for one in outlet.emissions if one.topic == "dead-letter"]
    assert [letter["reason"] for letter in letters] == ["too_large"] * (TYPES - 3)
    assert BatchingStage(BatchingConfig()).gauges(runner.state)["open_members"] == 3
    runner.state.close()
