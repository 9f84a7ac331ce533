"""A full disk and a damaged database: the worker says so and ends, and the next start has an exact state."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.test_runner import ENGINE_FAILED, assert_exact, records, run_dry
from tests.support.streams_worker import StreamsWorker, produce, read_all, until
from tests.unit.streams.test_store import damage

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log")
    yield one.at_once()
    one.end()


def aside(worker: StreamsWorker) -> list[Path]:
    """Databases that were moved aside."""
    return list((worker.data_dir / "counting").glob("*.damaged-*"))


def test_a_worker_that_cannot_write_any_more_ends_and_goes_on_when_there_is_room(worker: StreamsWorker) -> None:
    """A file size limit takes the part of the full disk."""
    total, keys, room = 20_000, 5_000, 120_000
    worker.settings["CHUNK_RECORDS"] = "500"
    worker.start().wait_ready()
    psutil.Process(worker.running.pid).rlimit(resource.RLIMIT_FSIZE, (room, room))
    produce(worker.kafka, worker.prefix + "raw", records(total, keys))
    assert worker.running.wait(300) == ENGINE_FAILED
    assert "DatabaseError" in worker.log.read_text()
    run_dry(worker, total)
    assert aside(worker) == []
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), total, keys)


def test_damage_met_while_running_ends_the_worker_and_the_next_start_rebuilds(worker: StreamsWorker) -> None:
    total, keys = 16_000, 8_000
    worker.start().wait_ready()
    produce(worker.kafka, worker.prefix + "raw", records(total // 2, keys))
    worker.wait_applied(total // 2)
    assert worker.terminate() == 0
    worker.snapshot()  # opening the databases writes what is in their logs to files
    for partition in (0, 2):
        damage(worker.data_dir / "counting" / str(partition))
    worker.start().wait_ready()
    produce(worker.kafka, worker.prefix + "raw", records(total // 2, keys, start=total // 2))
    assert worker.running.wait(300) == ENGINE_FAILED
    assert "Corruption" in worker.log.read_text()
    worker.start()
    until(lambda: worker.applied() >= total or worker.running.poll() is not None, "all applied, or the other one met")
    if worker.running.poll() is not None:
        worker.start().wait_applied(total)
    assert worker.terminate() == 0
    assert {path.name.split(".")[0] for path in aside(worker)} == {"0", "2"}
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), total, keys)
