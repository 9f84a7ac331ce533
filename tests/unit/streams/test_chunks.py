"""Small chunks that wait are applied as one and are no reason to stop fetching; large ones are bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from faust.types import TP

from headrace_core.stage import Record
from headrace_streams import budget, chunks
from headrace_streams.chunks import Chunk
from headrace_streams.faults import Faults
from headrace_streams.faust_internals import FETCHED_S, ChunkConsumer, ChunkThread, make_app
from headrace_streams.reads import Reads
from headrace_streams.runner import PartitionRunner, Surroundings
from headrace_streams.sizes import Limits
from headrace_streams.stages import StageSpec
from headrace_streams.store import RocksState
from tests.support.counting_stage import CountingStage

TP0, TP1 = TP("raw", 0), TP("raw", 1)


def records(start: int, count: int, size: int = 1) -> list[Record]:
    return [Record(0, offset, 1_000, b"k", b"x" * size, ()) for offset in range(start, start + count)]


def waiting(*spans: tuple[int, int]) -> tuple[deque[Chunk], list[int]]:
    """Chunks of (first offset, records), and the first offsets of those that were acknowledged."""
    acked: list[int] = []
    made = [Chunk(records(start, count), lambda start=start: acked.append(start)) for start, count in spans]
    return deque(made), acked


@pytest.mark.parametrize(("spans", "most", "taken"), [
    ([(0, 3), (3, 2), (5, 4)], 100, 3),  # all go on
    ([(0, 3), (3, 2), (5, 4)], 8, 2),  # the third is too much
    ([(0, 9), (9, 1)], 5, 1),  # the first is taken whatever its size
    ([(0, 3), (4, 2), (6, 1)], 100, 1),  # a gap is the runner's to judge
    ([(0, 3), (0, 3), (3, 1)], 100, 1),  # and so is a repeat
    ([(0, 3), (3, 0), (3, 1)], 100, 1),  # one without records goes on from nothing
])  # fmt: skip
def test_those_that_go_on_from_each_other_are_one(spans: list[tuple[int, int]], most: int, taken: int) -> None:
    those, acked = waiting(*spans)
    chunk = chunks.take(those, most)
    assert [r.offset for r in chunk.records] == [o for start, n in spans[:taken] for o in range(start, start + n)]
    assert len(those) == len(spans) - taken
    assert acked == []
    chunk.ack()
    assert acked == [start for start, _ in spans[:taken]]


class Outlet:
    """Acknowledges when it is told to; notes the emissions of each chunk."""

    limits = Limits({})

    def __init__(self) -> None:
        self.emitted: list[int] = []
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    def batch_bytes(self, _: str) -> int:
        return 1_000_000

    async def emit(self, emissions: list[Any], _: int) -> None:
        if emissions:
            self.emitted.append(len(emissions))
            self.asked.set()
            await self.answered.wait()

    async def changelog(self, *_: Any) -> int:
        return 1


async def test_what_comes_while_an_acknowledgement_is_waited_for_costs_one_more_however_many_chunks_it_is(
    tmp_path: Path,
) -> None:
    outlet: Any = Outlet()
    around = Surroundings(
        "", "", tmp_path, outlet, Faults(""), owns=lambda: True, epoch=lambda: 1, seek=None, fatal=None,
        chunk_records=5_000,
    )  # type: ignore[arg-type]  # fmt: skip
    runner = PartitionRunner(StageSpec("counting", "raw", (), CountingStage), 0, around)
    runner.state, acked = RocksState(tmp_path / "db"), asyncio.Semaphore(0)
    runner.reads, runner.ready = Reads(runner.state), True
    work = asyncio.create_task(runner._work())
    runner.submit(Chunk(records(0, 2), acked.release))
    await outlet.asked.wait()
    for start in range(2, 62, 3):
        runner.submit(Chunk(records(start, 3), acked.release))
    assert (runner.waiting, runner.idle) == (20, False)
    outlet.answered.set()
    for _ in range(21):
        await acked.acquire()
    assert outlet.emitted == [2, 60]
    assert (runner.waiting, runner.idle, runner.next_offset) == (0, True, 62)
    runner._task = work
    await runner.close()


async def test_closing_finishes_the_chunk_under_way_and_gives_back_the_others(tmp_path: Path) -> None:
    outlet: Any = Outlet()
    around = Surroundings(
        "", "", tmp_path, outlet, Faults(""), owns=lambda: True, epoch=lambda: 1, seek=None, fatal=None
    )  # type: ignore[arg-type]
    runner = PartitionRunner(StageSpec("counting", "raw", (), CountingStage), 0, around)
    runner.state, acked = RocksState(tmp_path / "db"), list[int]()
    runner.reads, runner.ready = Reads(runner.state), True
    runner._task = asyncio.create_task(runner._work())
    runner.submit(Chunk(records(0, 2), lambda: acked.append(0)))
    await outlet.asked.wait()
    runner.submit(Chunk(records(2, 2), lambda: acked.append(2)))
    closing = asyncio.create_task(runner.close())
    await asyncio.sleep(0)
    runner.submit(Chunk(records(4, 2), lambda: acked.append(4)))
    assert acked == [4]
    outlet.answered.set()
    await closing
    assert acked == [4, 0, 2]
    again = RocksState(tmp_path / "db")
    assert again.position.marker.source == 1
    again.close()


class Restored:
    """All partitions are."""

    def next_offset(self, _: str, __: int) -> int | None:
        return 0


def consumer(tmp_path: Path) -> ChunkConsumer:
    app = make_app(group="g", bootstrap="127.0.0.1:1", data_dir=tmp_path, markers=Restored(), chunk_records=5_000,
                   session_timeout_s=6)  # fmt: skip
    assert isinstance(app.consumer, ChunkConsumer)
    return app.consumer


async def hand_over(to: ChunkConsumer, count: int, of: int, size: int) -> list[Any]:
    """Messages of partition 0, as the consumer hands them over; the caller keeps them alive."""
    made = [to._chunk_message(TP0, records(number * of, of, size)) for number in range(count)]
    for message in made:
        to._unacked_messages.add(message)
    return made


def has_room(of: ChunkConsumer, tp: TP) -> bool:
    return tp in budget.room(of._under_way(), {TP0, TP1}, 5_000).partitions


async def test_there_is_room_for_many_small_chunks_and_for_three_large_ones(tmp_path: Path) -> None:
    one = consumer(tmp_path)
    small = await hand_over(one, 40, 10, 100)
    assert has_room(one, TP0)
    many = await hand_over(one, budget.CHUNKS, 5_000, 1)
    assert not has_room(one, TP0)
    assert has_room(one, TP1)
    for message in many:
        message.acked = True
    assert has_room(one, TP0)
    large = await hand_over(one, 1, 3, 100_000)
    assert not has_room(one, TP0)
    for message in small:
        message.acked = True
    assert has_room(one, TP0)
    assert len(large) == 1


async def test_what_is_fetched_and_not_consumed_holds_up_the_others_for_a_hundredth_of_a_second(tmp_path: Path) -> None:
    one = consumer(tmp_path)
    thread = one._thread
    assert isinstance(thread, ChunkThread)
    made = thread._create_worker_consumer(one.transport)
    thread._consumer = made
    made._fetcher = type("Fetcher", (), {"_prefetch_backoff": 0.1})()
    thread._fetch_on()
    assert made._fetcher._prefetch_backoff == FETCHED_S == 0.01
    made._fetcher = None
