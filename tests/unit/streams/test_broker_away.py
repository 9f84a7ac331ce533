"""A broker that is away while a partition is restored is waited for; what waiting does not mend ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAuthorizationFailedError

from headrace_streams import restore, runner
from headrace_streams.faults import Faults
from headrace_streams.runner import PartitionRunner, Surroundings
from headrace_streams.stages import StageSpec
from headrace_streams.store import RocksState
from headrace_streams.transactions import end_offset
from tests.support.counting_stage import CountingStage

NOBODY = "127.0.0.1:1"


def partition(folder: Path, fatal: Callable[[BaseException, str], None]) -> PartitionRunner:
    around = Surroundings(
        NOBODY, "", folder, None, Faults(""), owns=lambda: True, epoch=lambda: 1, seek=None, fatal=fatal
    )  # type: ignore[arg-type]
    return PartitionRunner(StageSpec("counting", "raw", (), CountingStage), 0, around)


async def test_readers_say_that_nobody_answers(tmp_path: Path) -> None:
    state = RocksState(tmp_path / "db")
    for asked in (
        end_offset(NOBODY, TopicPartition("changelog", 0)),
        restore.restore(NOBODY, TopicPartition("changelog", 0), state, CountingStage()),
    ):
        with pytest.raises(KafkaConnectionError) as found:
            await asked
        assert found.value.retriable
    state.close()


async def test_it_is_tried_again_until_the_broker_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[BaseException] = []
    tries = asyncio.Semaphore(0)
    real = restore.restore

    async def counted(*given: Any) -> Any:
        tries.release()
        return await real(*given)

    monkeypatch.setattr(runner, "BROKER_AWAY_S", 0.01)
    monkeypatch.setattr(restore, "restore", counted)
    one = partition(tmp_path, lambda error, _: ended.append(error))
    one._task = asyncio.create_task(one._run())
    for _ in range(3):
        await tries.acquire()
    assert (ended, one.ready, one.step) == ([], False, "restoring")
    await one.close()
    assert ended == []


async def test_what_waiting_does_not_mend_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[BaseException] = []

    async def refused(*_: Any) -> Any:
        raise TopicAuthorizationFailedError

    monkeypatch.setattr(restore, "restore", refused)
    one = partition(tmp_path, lambda error, _: ended.append(error))
    await one._run()
    assert [type(error) for error in ended] == [TopicAuthorizationFailedError]
    assert isinstance(ended[0], KafkaError)
    await one.close()
