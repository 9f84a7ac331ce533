"""The watchdog on a real Kafka: slow is not stalled, what nobody got is read again, a hanging broker is told."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.kafka import KafkaServer
from tests.integration.test_runner import create_raw
from tests.support.streams_worker import StreamsWorker, produce, read_all, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

STALLED = 70
DEAF = "tests.support.deaf_stage:DeafStage"
STALL_S = "5"
"""The watchdog counts 3 s at most for a moment in which the machine did not let the worker run."""
RACING = "tests.support.racing_stage:RacingStage"


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log")
    yield one
    one.end()


def slow(count: int) -> list[tuple[int, bytes, bytes]]:
    """Records of partition 0 that take 10 ms each."""
    return [(0, b"k0", b"slow")] * count


def lines(worker: StreamsWorker, event: str) -> list[dict[str, Any]]:
    """What the worker logged as `event`."""
    logged = [json.loads(line) for line in worker.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in logged if line["event"] == event]


def test_a_chunk_that_takes_longer_than_a_stall_is_none_as_long_as_it_goes_on(worker: StreamsWorker) -> None:
    create_raw(worker)
    produce(worker.kafka, worker.prefix + "raw", slow(600))
    worker.start(STALL_S=STALL_S)
    worker.wait_applied(600)
    assert worker.terminate() == 0


def test_the_first_records_after_a_long_silence_are_no_stall(worker: StreamsWorker) -> None:
    worker.settings["STALL_S"] = STALL_S
    worker.start().wait_ready()
    produce(worker.kafka, worker.prefix + "raw", slow(1))
    worker.wait_applied(1)
    time.sleep(float(STALL_S) + 0.5)  # silence, longer than a stall
    produce(worker.kafka, worker.prefix + "raw", slow(100))
    worker.wait_applied(101)
    assert worker.terminate() == 0


def test_a_small_chunk_does_not_wait_for_slices_of_a_large_one(worker: StreamsWorker) -> None:
    create_raw(worker)
    many = 10_000  # a hundred seconds' work, of which the test waits for none
    produce(worker.kafka, worker.prefix + "raw", slow(many))
    worker.start(CHUNK_RECORDS=str(many)).wait_ready()
    until(lambda: worker.metric('headrace_stage_lag{partition="0"') > 0, "a large chunk under way")
    produce(worker.kafka, worker.prefix + "raw", [(1, b"k1", b"1")])
    until(lambda: worker.metric('headrace_stage_offset{partition="1"') == 1, "the small chunk")
    assert worker.metric('headrace_stage_offset{partition="0"') == 0
    assert worker.metric('headrace_stage_lag{partition="0"') == many
    worker.kill()


def test_records_fetched_for_a_generation_that_is_over_are_read_again_without_another_record(
    worker: StreamsWorker,
) -> None:
    worker.stages = RACING
    worker.start(STALL_S="3600").wait_ready()  # no other start helps
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k0", b"%d" % i) for i in range(50)])
    worker.wait_applied(50)
    assert worker.terminate() == 0
    assert [int(output.value) for output in read_all(worker.kafka, worker.prefix + "routed")] == list(range(1, 51))


def test_a_fetcher_that_ends_unheard_ends_the_worker(worker: StreamsWorker) -> None:
    worker.stages = DEAF
    worker.start().wait_ready()
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k0", b"%d" % i) for i in range(50)])
    assert worker.running.wait(300) == STALLED
    assert "the fetcher has ended" in lines(worker, "fatal")[-1]["error"]


def stop_in_a_chunk(worker: StreamsWorker, broker_pid: int) -> None:
    """SIGSTOP to the broker while a chunk is applied; where the chunk was the faster, to be seen by its lag, again."""
    lag = 'headrace_stage_lag{partition="0"'
    while True:
        produce(worker.kafka, worker.prefix + "raw", slow(300))
        until(lambda: worker.metric(lag) > 0, "a chunk under way")
        os.kill(broker_pid, signal.SIGSTOP)
        if worker.metric(lag) > 0:
            return
        os.kill(broker_pid, signal.SIGCONT)


def test_a_hanging_broker_ends_the_worker_which_tells_where_it_was(topic_prefix: str, tmp_path: Path) -> None:
    server = KafkaServer(tmp_path / "kafka", heap="384m").start()
    worker = StreamsWorker(server.bootstrap, topic_prefix, tmp_path / "data", tmp_path / "worker.log")
    try:
        worker.start(STALL_S="10", SESSION_TIMEOUT_S="30").wait_ready()
        assert server.process is not None
        stop_in_a_chunk(worker, server.process.pid)
        assert worker.healthy()
        until(lambda: not worker.healthy(), "the worker tells that it stands still")
        assert worker.running.wait(300) == STALLED
        (told,) = [line for line in lines(worker, "stalled") if line["partition"] == 0]
        assert (told["step"], told["busy"]) == ("3 emissions", True)
        assert min(told["unacked"], told["lag"]) > 0
        assert told["since"] >= 10
    finally:
        worker.end()
        server.kill()
