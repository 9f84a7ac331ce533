"""`headrace state` on a real Kafka with a real worker: databases equal their changelogs, an altered byte is found."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from rocksdict import Options, Rdict
from typer.testing import CliRunner

from headrace.cli import app
from headrace.kafka import KafkaServer
from headrace_core.registration import items
from headrace_streams.store import POSITION_KEY, RocksState
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

ROOT = "r0"
SETTINGS = {
    "ROOTS": json.dumps({ROOT: "main-0"}), "BATCHING": json.dumps({"window": 50, "timeout": 3_600_000}),
    "REGISTRATION": json.dumps({"auto_register": False}), "CHUNK_RECORDS": "200", "PARTITIONS": "2",
}  # fmt: skip
DEVICES, TURNS = 10, 40
TAKEN = r'headrace_stage\{name="in",.*stage="registration"'
BATCHED = r'headrace_stage\{name="accepted",.*stage="batching"'


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    stages = "registration,batching"
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log", stages, dict(SETTINGS))
    yield one
    one.end()


@pytest.fixture(scope="module")
def ended(kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamsWorker]:
    """A worker that applied everything and was stopped."""
    folder = tmp_path_factory.mktemp("ended")
    stages, prefix = "registration,batching", f"t{uuid.uuid4().hex[:10]}."
    one = StreamsWorker(kafka_server.bootstrap, prefix, folder / "data", folder / "worker.log", stages, dict(SETTINGS))
    one.start().wait_ready()
    publish(one)
    applied(one)
    assert one.terminate() == 0
    yield one
    one.end()


@pytest.fixture
def stopped(ended: StreamsWorker, tmp_path: Path) -> Iterator[StreamsWorker]:
    """The same with a copy of its databases."""
    one = replace(ended, data_dir=tmp_path / "data")
    shutil.copytree(ended.data_dir, one.data_dir)
    yield one
    one.end()


def publish(worker: StreamsWorker, turns: int = TURNS) -> None:
    """Data of ten devices, half of which register after their first data, the others never; all in partition 1."""
    producer = Producer({"bootstrap.servers": worker.kafka, "acks": "all", "enable.idempotence": True})
    for turn in range(turns):
        for device in range(DEVICES):
            topic, value = f"{ROOT}/device/d{device}///m/t{turn % 7}", {"time": turn / 10, "v": device}
            if turn == 3 and device % 2:
                topic, value = f"{ROOT}/device/d{device}//", {"@type": "child-device", "twin": {"n": device}}
            headers = [("topic", topic.encode()), ("qos", b"1"), ("retain", b"0")]
            producer.produce(f"{worker.prefix}raw", json.dumps(value), ROOT.encode(), 1, headers=headers)
    assert producer.flush(240) == 0


def applied(worker: StreamsWorker) -> None:
    """All of it is taken, and batching has all that registration passed on."""
    half = DEVICES // 2 * (TURNS - 1)
    until(lambda: worker.metric(TAKEN) == DEVICES * TURNS, f"registration, see {worker.log}")
    until(lambda: worker.metric(BATCHED) == half, f"batching, see {worker.log}")


def headrace(worker: StreamsWorker, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and lines of `headrace state ...` on this worker's topics."""
    where = ["--kafka", worker.kafka, "--prefix", worker.prefix]
    if arguments[0] == "verify":
        where += ["--data-dir", str(worker.data_dir)]
    ran = CliRunner().invoke(app, ["state", *arguments, *where])
    assert ran.exit_code in (0, 1) or "not compared" in ran.stderr or ran.exception, ran.output
    return ran.exit_code, ran.stdout.splitlines()


def verified(worker: StreamsWorker, stage: str) -> tuple[int, list[dict[str, Any]]]:
    code, lines = headrace(worker, "verify", stage, "--json")
    return code, [json.loads(line) for line in lines]


def is_equal(worker: StreamsWorker, stage: str) -> list[dict[str, Any]]:
    code, lines = verified(worker, stage)
    assert code == 0, lines
    assert [line["partition"] for line in lines] == [0, 1]
    assert all(line["differing"] == line["undecided"] == 0 for line in lines)
    return lines


def test_databases_equal_their_changelogs_over_kill_and_restore(worker: StreamsWorker) -> None:
    worker.at_once().start().wait_ready()
    publish(worker)
    until(lambda: worker.metric(TAKEN) > 0, f"progress, see {worker.log}")
    is_equal(worker, "registration")  # while it works
    worker.kill()
    is_equal(worker, "registration")
    is_equal(worker, "batching")
    worker.delete_databases()
    worker.start().wait_ready()
    applied(worker)
    for stage in ("registration", "batching"):
        assert is_equal(worker, stage)[1]["derived"] > DEVICES


def alter(worker: StreamsWorker, key: bytes, value: bytes | None) -> bytes | None:
    """Set a key in the registration database of partition 1; returns what was there."""
    state = RocksState(worker.data_dir / "registration" / "1")
    before = state.get(key)
    if value is None:
        state.delete(key)
    else:
        state.put(key, value)
    state.close()
    return before


def test_every_altered_key_is_found_and_named(stopped: StreamsWorker) -> None:
    """A byte of a value, a derived key that is missing, a key too many, another marker."""
    entity, twin = items.key(b"E", ROOT, "device/d3//"), items.key(b"T", ROOT, "device/d3//") + b"more"
    index = items.key(b"K", ROOT, "device/main//", "device/d3//")
    before, position = alter(stopped, entity, None), alter(stopped, POSITION_KEY, None)
    assert before is not None
    assert position is not None
    alter(stopped, entity, before[:-2] + bytes([before[-2] ^ 1]) + before[-1:])
    alter(stopped, index, None)
    alter(stopped, twin, b"1")
    alter(stopped, POSITION_KEY, position.replace(b'"epoch":', b'"epoch":1'))
    assert headrace(stopped, "verify", "registration", "--partition", "0")[0] == 0
    code, lines = headrace(stopped, "verify", "registration", "--partition", "1")
    assert code == 1
    assert [line for line in lines if "differs: " in line] == [
        f"partition 1: key differs: entity {ROOT} device/d3//",
        f"partition 1: derived key differs: {index!r}",
        f"partition 1: key differs: twin {ROOT} device/d3// more",
        "partition 1: key differs: marker",
    ]
    assert lines[4:6] == ["  changelog  b''", "  database   is not there"]
    assert lines[7:9] == ["  changelog  is not there", "  database   1"]
    assert lines[-1].startswith("partition 1: 4 keys DIFFER: ")

    stopped.delete_databases()
    assert headrace(stopped, "verify", "registration")[0] == 2  # nothing is there to compare


def test_a_damaged_file_is_found(stopped: StreamsWorker) -> None:
    path = stopped.data_dir / "registration" / "1"
    db = Rdict(str(path), Options(raw_mode=True))
    db.flush()
    db.close()
    table = max(path.glob("*.sst"), key=lambda file: file.stat().st_size)
    raw = bytearray(table.read_bytes())
    raw[len(raw) // 4] ^= 1
    table.write_bytes(raw)
    code, lines = headrace(stopped, "verify", "registration")
    assert code == 1
    assert any(line.startswith("partition 1: DAMAGED: ") for line in lines)


def test_a_dump_is_what_the_database_holds(stopped: StreamsWorker) -> None:
    code, lines = headrace(stopped, "dump", "registration", "--json")
    assert code == 0
    documents = [json.loads(line) for line in lines]
    items = [line for line in documents if "family" in line]
    assert not any("problem" in line for line in items)
    held = stopped.snapshot("registration")
    assert len(items) == sum(key[0] in b"cntETGVPWMZLHR" for keys in held.values() for key in keys)
    counters = {line["key"]["name"]: line["value"] for line in items if line["family"] == "counter"}
    assert counters["in"] == DEVICES * TURNS
    entities = [line["key"]["topic_id"] for line in items if line["family"] == "entity"]
    assert entities == [f"device/d{n}//" for n in range(1, DEVICES, 2)] + ["device/main//"]
    cached = [line["value"]["message"] for line in items if line["family"] == "cached"]
    assert len(cached) == counters["pending"] == 100
    assert json.loads(cached[0]["payload"])["v"] % 2 == 0
    assert documents[-1]["marker"]["source"] >= DEVICES * TURNS - 1

    code, lines = headrace(stopped, "dump", "batching", "--partition", "1")
    assert code == 0
    assert lines[0].startswith("partition 1: ")
    assert any(line.startswith("  open ") and f"{ROOT}/device/d1//" in line for line in lines)
    assert headrace(stopped, "dump", "batching", "--partition", "7")[0] == 1
    assert headrace(stopped, "dump", "nobody")[0] == 1
    assert headrace(stopped, "verify", "nobody")[0] == 2
