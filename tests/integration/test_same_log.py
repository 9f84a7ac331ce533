"""The same log through one worker and three, with and without kills: the same outputs in the same order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from headrace_core.stage import Emission, Record, header
from headrace_core.state import MemoryState
from tests.integration.test_runner import PARTITIONS, records, run_dry
from tests.support.counting_stage import CountingStage
from tests.support.streams_worker import Output, StreamsWorker, produce, read_all, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

SHORT, LONG = 16_000, 200_000


@pytest.fixture
def workers(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[list[StreamsWorker]]:
    three = [StreamsWorker(kafka, topic_prefix, tmp_path / f"data{n}", tmp_path / f"worker{n}.log") for n in range(3)]
    for one in three:
        one.settings |= {"CHUNK_RECORDS": "200", "INSTANCE": one.data_dir.name}
    yield three
    for one in three:
        one.end()


def pure(total: int) -> dict[int, list[tuple[bytes, bytes]]]:
    """Per partition what the stage itself makes of the log: (id, value) in order."""
    states = [MemoryState() for _ in range(PARTITIONS)]
    offsets, outputs = [0] * PARTITIONS, {partition: list[tuple[bytes, bytes]]() for partition in range(PARTITIONS)}
    stage, emissions = CountingStage(), list[Emission]()
    for partition, key, value in records(total):
        stage.apply(states[partition], Record(partition, offsets[partition], 0, key, value), emissions.append)
        offsets[partition] += 1
    for emission in emissions:
        assert emission.partition is not None
        outputs[emission.partition].append((header(emission.headers, "id") or b"", emission.value or b""))
    return outputs


def first_of_each(outputs: list[Output]) -> dict[int, list[tuple[bytes, bytes]]]:
    """Per partition (id, value) in order, repeats, which must be byte-equal, left out."""
    seen: dict[bytes, Output] = {}
    order: dict[int, list[tuple[bytes, bytes]]] = {partition: [] for partition in range(PARTITIONS)}
    for output in outputs:
        if output.id not in seen:
            order[output.partition].append((output.id, output.value))
        first = seen.setdefault(output.id, output)
        assert (first.partition, first.key, first.value) == (output.partition, output.key, output.value)
    return order


def applied(workers: list[StreamsWorker]) -> int:
    return sum(one.applied() for one in workers)


@pytest.mark.parametrize(
    ("count", "kills", "total"),
    [
        (3, 2, SHORT),
        pytest.param(1, 0, LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
        pytest.param(3, 0, LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
        pytest.param(1, 15, LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
        pytest.param(3, 15, LONG, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_any_number_of_workers_with_or_without_kills_puts_out_what_the_stage_does(
    workers: list[StreamsWorker], count: int, kills: int, total: int
) -> None:
    used, dice = workers[:count], random.Random(9)
    for one in used:
        one.start()
    for one in used:
        one.wait_ready(120)
    feeder = Thread(target=lambda: produce(workers[0].kafka, workers[0].prefix + "raw", records(total)))
    feeder.start()
    for goal in sorted(dice.randrange(total // 10, total) for _ in range(kills)):
        until(lambda goal=goal: applied(used) >= goal, "progress", 300)
        victim = dice.choice(used)
        victim.kill()
        victim.start()
    feeder.join()
    until(lambda: applied(used) >= total, "all applied", 300)
    for one in used:
        one.wait_ready(120)
        assert one.terminate() == 0
    run_dry(workers[0], total)
    assert first_of_each(read_all(workers[0].kafka, workers[0].prefix + "routed")) == pure(total)
