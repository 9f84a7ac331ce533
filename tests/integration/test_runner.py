"""The chunk runner on a real Kafka (`streams.md` 6): whatever happens to a worker, counts are exact."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.counting_stage import WIDE_KEYS
from tests.support.streams_worker import Output, StreamsWorker, produce, read_all, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PARTITIONS = 4
ENGINE_FAILED = 70
FAULT_EXIT = 86
LOST_TO_RETENTION = r'headrace_stage\{name="lost_to_retention"'
SHORT_ROUNDS = 5


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log")
    yield one
    one.end()


def records(count: int, keys: int = 200, start: int = 0) -> Iterator[tuple[int, bytes, bytes]]:
    """`count` records whose keys stay in their partition."""
    for i in range(start, start + count):
        key = (i * 7919) % keys
        yield key % PARTITIONS, b"k%d" % key, b"%d" % i


def assert_exact(outputs: list[Output], total: int, keys: int = 200) -> None:
    """Each input has its output, repeats are byte-equal, and each key was counted 1, 2, 3 ... without a hole."""
    by_id: dict[bytes, Output] = {}
    for output in outputs:
        first = by_id.setdefault(output.id, output)
        assert (first.partition, first.key, first.value) == (output.partition, output.key, output.value)
    assert len(by_id) == total
    counts = defaultdict(list)
    for output in by_id.values():
        counts[output.key].append(int(output.value))
    expected = Counter(key for _, key, _ in records(total, keys))
    assert {key: len(values) for key, values in counts.items()} == expected
    assert all(values == list(range(1, len(values) + 1)) for values in counts.values())


def run_dry(worker: StreamsWorker, total: int) -> None:
    """Start without faults, apply everything, check the durable total, stop gracefully."""
    worker.start().wait_ready()
    worker.wait_applied(total)
    assert worker.metric('headrace_stage{name="total"') == total
    assert worker.terminate() == 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [SHORT_ROUNDS, pytest.param(20, marks=pytest.mark.soak)])
def test_kill_at_random_points_leaves_the_sum_exact_also_without_local_databases(
    worker: StreamsWorker, rounds: int
) -> None:
    total, dice = (rounds + 1) * 7_000 + 3_000, random.Random(5)
    worker.settings["CHUNK_RECORDS"] = "500"
    if rounds == SHORT_ROUNDS:
        worker.at_once()
    worker.start().wait_ready()
    feeder = Thread(target=lambda: produce(worker.kafka, worker.prefix + "raw", records(total)))
    feeder.start()
    for round_ in range(rounds):
        goal = (round_ + 1) * 7_000 + dice.randrange(2_000)
        until(lambda goal=goal: worker.applied() >= goal, f"progress, see {worker.log}")
        time.sleep(dice.random() * 0.05)
        worker.kill()
        if round_ % 4 in (1, 3):
            worker.delete_databases()
        worker.start().wait_ready()
    feeder.join()
    worker.kill()
    run_dry(worker, total)
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), total)


def test_a_crash_after_any_step_repeats_outputs_only_byte_equal(worker: StreamsWorker) -> None:
    """After each step once, one after the other: what one leaves behind is where the next begins."""
    total = 12_000
    worker.settings["CHUNK_RECORDS"] = "200"
    create_raw(worker.at_once())
    produce(worker.kafka, worker.prefix + "raw", records(total))
    for step in (2, 3, 4, 5, 6):
        worker.start(FAULT=f"{step}:5")
        assert worker.running.wait(300) == FAULT_EXIT, f"step {step}"
    run_dry(worker, total)
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), total)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("total", "stops"), [(20_000, 2), pytest.param(500_000, 12, marks=pytest.mark.soak)])
def test_graceful_stops_apply_every_offset_once_and_repeat_nothing(
    worker: StreamsWorker, total: int, stops: int
) -> None:
    dice = random.Random(7)
    worker.settings |= {"CHUNK_RECORDS": "300", "SESSION_TIMEOUT_S": "60"}  # no session ends, as nobody is killed
    worker.start().wait_ready()
    feeder = Thread(target=lambda: produce(worker.kafka, worker.prefix + "raw", records(total)))
    feeder.start()
    for goal in sorted(dice.randrange(total) for _ in range(stops)):
        worker.wait_applied(goal, 300)
        assert worker.terminate() == 0
        worker.start().wait_ready()
    feeder.join()
    worker.wait_applied(total)
    assert worker.terminate() == 0
    outputs = read_all(worker.kafka, worker.prefix + "routed")
    assert len(outputs) == total
    assert_exact(outputs, total)


def test_an_exception_in_the_engine_ends_the_process_and_the_record_is_repeated(worker: StreamsWorker) -> None:
    worker.at_once().start().wait_ready()
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k0", b"1"), (0, b"k0", b"boom")])
    assert worker.running.wait(300) == ENGINE_FAILED
    worker.start()
    assert worker.running.wait(300) == ENGINE_FAILED
    assert {output.id for output in read_all(worker.kafka, worker.prefix + "routed")} <= {b"counting:0:0:0"}
    worker.stages = "tests.support.counting_stage:MendedStage"
    run_dry(worker, 2)
    assert_counted(read_all(worker.kafka, worker.prefix + "routed"), 2)


def test_what_retention_took_before_it_was_applied_is_told_and_is_no_lag(worker: StreamsWorker) -> None:
    """With lag that no record can end, no tick would come and the watchdog would end every new worker."""
    worker.at_once().start().wait_ready()
    topic = worker.prefix + "raw"
    produce(worker.kafka, topic, [(0, b"k0", b"1")] * 5)
    worker.wait_applied(5)
    assert worker.terminate() == 0
    produce(worker.kafka, topic, [(0, b"k0", b"1")] * 7)
    admin = AdminClient({"bootstrap.servers": worker.kafka})
    for future in admin.delete_records([TopicPartition(topic, 0, 12)]).values():
        future.result(240)
    worker.start().wait_ready()
    until(lambda: "deleted from the log before they were applied" in worker.log.read_text(), f"see {worker.log}")
    assert '"lost": 7' in worker.log.read_text()
    lag = 'headrace_stage_lag{partition="0",stage="counting"} '
    until(lambda: lag + "0.0" in worker.get("/metrics"), f"see {worker.log}")
    produce(worker.kafka, topic, [(0, b"k0", b"1")])
    worker.wait_applied(13)
    assert worker.metric('headrace_stage{name="total"') == 6
    assert worker.metric(LOST_TO_RETENTION) == 7
    assert worker.terminate() == 0
    worker.delete_databases()  # the count is in the changelog, too
    worker.start().wait_ready()
    assert worker.metric(LOST_TO_RETENTION) == 7
    assert worker.terminate() == 0


def test_a_restored_state_equals_the_one_that_was_lost(worker: StreamsWorker) -> None:
    total = 30_000
    worker.start().wait_ready()
    produce(worker.kafka, worker.prefix + "raw", records(total, keys=5_000))
    worker.wait_applied(total)
    assert worker.terminate() == 0
    before = worker.snapshot()
    worker.delete_databases()
    worker.start().wait_ready()
    assert worker.terminate() == 0
    assert worker.snapshot() == before
    assert sum(len(items) for items in before.values()) == 2 * 5_000 + PARTITIONS


def test_a_chunk_whose_mutations_do_not_fit_one_batch_is_split(worker: StreamsWorker) -> None:
    total, keys = 16_000, 16_000
    worker.settings["MAX_REQUEST_BYTES"] = str(64 * 1024)
    create_raw(worker)
    produce(worker.kafka, worker.prefix + "raw", records(total, keys))
    run_dry(worker, total)
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), total, keys)


def create_raw(worker: StreamsWorker, timestamps: str = "LogAppendTime") -> None:
    """The input as somebody else would make it."""
    admin = AdminClient({"bootstrap.servers": worker.kafka})
    topic = NewTopic(worker.prefix + "raw", PARTITIONS, 1, config={"message.timestamp.type": timestamps})
    for future in admin.create_topics([topic]).values():
        future.result(240)


def test_emissions_that_fill_many_batches_are_all_sent(worker: StreamsWorker) -> None:
    total = 500
    worker.settings["MAX_REQUEST_BYTES"] = str(64 * 1024)
    create_raw(worker)
    worker.start(CHUNK_RECORDS="500").wait_ready()
    key = b"k" * 5_000  # the key of each output, so 12 outputs fill a batch
    produce(worker.kafka, worker.prefix + "raw", ((1, key, b"%d" % i) for i in range(total)))
    worker.wait_applied(total)
    assert worker.terminate() == 0
    outputs = read_all(worker.kafka, worker.prefix + "routed")
    assert [int(output.value) for output in outputs] == list(range(1, total + 1))


def test_an_input_whose_time_is_not_the_brokers_is_refused(worker: StreamsWorker) -> None:
    create_raw(worker, "CreateTime")
    worker.start()
    assert worker.running.wait(300) != 0
    assert "LogAppendTime" in worker.log.read_text()


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(3, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
        7,
        4,
        pytest.param(5, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
def test_one_record_whose_mutations_do_not_fit_one_batch_is_there_whole_or_not_at_all(
    worker: StreamsWorker, step: int
) -> None:
    worker.settings["MAX_REQUEST_BYTES"] = str(64 * 1024)
    worker.at_once().start(CHUNK_RECORDS="1").wait_ready()
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k0", b"1")])
    worker.wait_applied(1)
    assert worker.terminate() == 0
    produce(worker.kafka, worker.prefix + "raw", [(0, b"k0", b"wide"), (0, b"k0", b"3"), (0, b"k0", b"wide")])
    worker.start(CHUNK_RECORDS="1", FAULT=f"{step}:{1 if step == 7 else 2}")
    assert worker.running.wait(300) == FAULT_EXIT
    if step == 7:
        worker.delete_databases()
    run_dry(worker, 4)
    before = worker.snapshot()
    assert len([key for key in before[0] if key[:1] == b"x"]) == WIDE_KEYS
    worker.delete_databases()
    run_dry(worker, 4)
    assert worker.snapshot() == before
    assert_counted(read_all(worker.kafka, worker.prefix + "routed"), 4)


def assert_counted(outputs: list[Output], total: int) -> None:
    """One key, counted without a hole, repeats left out."""
    by_id = {output.id: int(output.value) for output in outputs}
    assert sorted(by_id.values()) == list(range(1, total + 1))


def test_ticks_come_while_something_waits_and_end_with_it(worker: StreamsWorker) -> None:
    worker.settings["TICK_INTERVAL_MS"] = "100"
    worker.start().wait_ready()
    produce(worker.kafka, worker.prefix + "raw", [(2, b"k2", b"wait")])
    until(lambda: worker.metric('headrace_stage{name="ticks",partition="2"') >= 5, "five ticks", 20)
    produce(worker.kafka, worker.prefix + "raw", [(2, b"k2", b"done")])
    until(lambda: worker.metric('headrace_stage{name="total"') == 2, "done applied")
    assert worker.metric('headrace_stage{name="ticks",partition="[013]"') == 0

    def silent() -> bool:
        """For ten intervals; not at once, as some may have been written before the worker had read `done`."""
        ticks = worker.metric('headrace_stage{name="ticks"')
        time.sleep(1)
        return worker.metric('headrace_stage{name="ticks"') == ticks

    until(silent, "no more ticks", 20)


@pytest.mark.parametrize("flood", [50_000, pytest.param(500_000, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_a_root_with_10000_times_the_traffic_does_not_hold_up_another(worker: StreamsWorker, flood: int) -> None:
    """Judged by how much of the flood was put out while a quiet record waited, not by time: the flood is kept up."""
    quiet, raw = flood // 10_000, worker.prefix + "raw"
    create_raw(worker)
    sent, over = flood, Event()
    produce(worker.kafka, raw, ((0, b"k0", b"x" * 100) for _ in range(flood)))

    def keep_up() -> None:
        nonlocal sent
        while not over.wait(0.05):
            if sent - worker.metric('headrace_stage_offset{partition="0"') < flood:
                produce(worker.kafka, raw, ((0, b"k0", b"x" * 100) for _ in range(flood // 4)))
                sent += flood // 4

    worker.start(CHUNK_RECORDS="500").wait_ready()
    feeder = Thread(target=keep_up)
    feeder.start()
    try:
        for number in range(quiet):
            produce(worker.kafka, raw, [(1, b"k1", b"%d" % number)])
            until(lambda number=number: worker.metric('headrace_stage_offset{partition="1"') > number, "it is applied")
    finally:
        over.set()
        feeder.join()
    worker.wait_applied(sent + quiet)
    assert worker.terminate() == 0
    came = [one.append_ms for one in read_all(worker.kafka, raw) if one.partition == 1]
    outputs = read_all(worker.kafka, worker.prefix + "routed")
    went = [one.append_ms for one in outputs if one.partition == 1]
    flooded = [one.append_ms for one in outputs if one.partition == 0]
    assert came[-1] < flooded[-1], "the flood was over before anything could be seen"
    meanwhile = [sum(1 for at in flooded if start < at < end) for start, end in zip(came, went, strict=True)]
    assert max(meanwhile) < flood // 4, meanwhile


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("total", "joins"), [(40_000, 2), pytest.param(400_000, 20, marks=pytest.mark.soak)])
def test_a_second_worker_joins_and_leaves_without_loss_or_double_state(
    worker: StreamsWorker, tmp_path: Path, total: int, joins: int
) -> None:
    worker.settings["CHUNK_RECORDS"] = "500"
    worker.start().wait_ready()
    feeder = Thread(target=lambda: produce(worker.kafka, worker.prefix + "raw", records(total)))
    feeder.start()
    second = StreamsWorker(worker.kafka, worker.prefix, tmp_path / "data2", tmp_path / "worker2.log")
    try:
        for join in range(joins):
            end = second.kill if join % 2 else second.terminate
            second.start().wait_ready()
            until(lambda: second.applied() > 0 or worker.applied() >= total, "the second one has work")
            end()
    finally:
        second.end()
    feeder.join()
    worker.wait_applied(total)
    assert worker.terminate() == 0
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), total)


def test_a_worker_that_slept_past_its_session_cannot_spoil_its_successors_state(
    worker: StreamsWorker, tmp_path: Path
) -> None:
    total = 40_000
    worker.settings["CHUNK_RECORDS"] = "500"
    worker.start().wait_ready()
    second = StreamsWorker(worker.kafka, worker.prefix, tmp_path / "data2", tmp_path / "worker2.log")
    produce(worker.kafka, worker.prefix + "raw", records(total // 2))
    until(lambda: worker.applied() > 1_000, "work under way")
    os.kill(worker.running.pid, signal.SIGSTOP)
    try:
        second.start().wait_ready()
        second.wait_applied(total // 2)
        os.kill(worker.running.pid, signal.SIGCONT)
        produce(worker.kafka, worker.prefix + "raw", records(total // 2, start=total // 2))
        until(lambda: worker.applied() + second.applied() >= total, "all applied")
        assert second.terminate() == 0
    finally:
        worker.end()
        second.end()
    worker.delete_databases()
    run_dry(worker, total)
    assert_exact(read_all(worker.kafka, worker.prefix + "routed"), total)
