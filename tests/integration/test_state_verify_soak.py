"""A long run: whatever a worker is doing, killed again and again, its databases are what the changelog says."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from aiokafka import TopicPartition

from headrace_streams.verify import compare
from tests.support.counting_stage import CountingStage
from tests.support.streams_worker import StreamsWorker, produce, until

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(900)]

RECORDS, PARTITIONS, ROUNDS = 100_000, 4, 12


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log")
    one.settings |= {"CHUNK_RECORDS": "500"}
    yield one
    one.end()


def test_databases_equal_their_changelogs_at_any_moment(worker: StreamsWorker) -> None:
    dice = random.Random(5)
    records = ((n % PARTITIONS, b"k%d" % (n * 7919 % 20_000), b"") for n in range(RECORDS))
    worker.start().wait_ready()
    feeder = Thread(target=produce, args=(worker.kafka, f"{worker.prefix}raw", records))
    feeder.start()
    until(lambda: worker.applied() > 1_000, f"progress, see {worker.log}")
    compared = moving = 0
    for round_ in range(ROUNDS):
        for partition in range(PARTITIONS):
            tp = TopicPartition(f"{worker.prefix}counting.changelog", partition)
            path = worker.data_dir / "counting" / str(partition)
            found, summary = asyncio.run(compare(worker.kafka, tp, CountingStage(), path))
            assert found == [], summary
            assert summary.undecided == 0
            compared += summary.keys + summary.derived
            moving += summary.behind > 0
        if round_ % 4 == 2:
            worker.kill()
            time.sleep(dice.random())
            worker.start().wait_ready()
    feeder.join()
    assert compared > 100_000
    assert moving > 0
    assert worker.terminate() == 0
