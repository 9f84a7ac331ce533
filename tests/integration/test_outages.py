"""The broker goes away and comes back: a worker goes on by itself, in bounded memory (`streams.md` 6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import psutil
import pytest

from headrace.kafka import KafkaServer
from tests.integration.test_runner import assert_exact, records
from tests.support.streams_worker import StreamsWorker, produce, read_all, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

GROWTH_BYTES = 150 * 1024 * 1024


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaServer]:
    """One of our own, to be stopped."""
    server = KafkaServer(tmp_path / "kafka", heap="384m").start()
    yield server
    server.kill()


@pytest.fixture
def worker(broker: KafkaServer, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(broker.bootstrap, topic_prefix, tmp_path / "data", tmp_path / "worker.log")
    yield one
    one.end()


def resident(worker: StreamsWorker) -> int:
    """Bytes of memory."""
    return int(psutil.Process(worker.running.pid).memory_info().rss)


def test_a_worker_outlives_restarts_of_the_broker_under_load(broker: KafkaServer, worker: StreamsWorker) -> None:
    total = 24_000
    worker.settings["CHUNK_RECORDS"] = "200"
    worker.start().wait_ready()
    feeder = Thread(target=lambda: produce(worker.kafka, worker.prefix + "raw", records(total)))
    feeder.start()
    for goal, end in ((2_000, broker.stop), (10_000, broker.kill)):
        until(lambda goal=goal: worker.applied() >= goal, f"progress, see {worker.log}")
        end()
        broker.start()
    feeder.join()
    worker.wait_applied(total)
    assert worker.running.poll() is None
    assert worker.terminate() == 0
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), total)


@pytest.mark.parametrize("away_s", [8, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_after_an_outage_a_worker_goes_on_by_itself_in_bounded_memory(
    broker: KafkaServer, worker: StreamsWorker, away_s: int
) -> None:
    total = 20_000 if away_s < 60 else 60_000
    worker.settings["CHUNK_RECORDS"] = "200"
    worker.start().wait_ready()
    produce(worker.kafka, worker.prefix + "raw", records(total))
    until(lambda: worker.applied() >= 2_000, f"progress, see {worker.log}")
    before = resident(worker)
    broker.kill()
    highest, ends = 0, time.monotonic() + away_s
    while time.monotonic() < ends:
        time.sleep(0.5)
        highest = max(highest, resident(worker))
    broker.start()
    produce(worker.kafka, worker.prefix + "raw", records(total, start=total))
    worker.wait_applied(2 * total)
    print(
        f"{before >> 20} MiB before, {highest >> 20} during, {resident(worker) >> 20} after {away_s} s without broker"
    )
    assert max(highest, resident(worker)) - before < GROWTH_BYTES
    assert worker.terminate() == 0
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), 2 * total)
