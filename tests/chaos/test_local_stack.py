"""The whole local stack under bad input, and under kill -9 of each of its services."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace import evidence
from headrace.endpoints import ARCHIVE, WRITER, Endpoints, Job
from headrace.stack import LocalStack
from headrace.windows import highest
from headrace_core.batching.config import BatchingConfig
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.queries import answer
from headrace_core.registration.routes import Request
from headrace_core.stage import header
from tests.support import verify
from tests.support.patience import PATIENCE
from tests.support.streams_worker import until
from tests.support.traffic import Fleet, connect, publish

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]

PARTITIONS = 4
KILLS = int(os.environ.get("HEADRACE_CHAOS_KILLS", "2"))
SERVICES = {"bridge": KILLS, "streams": KILLS, "api": KILLS, "spark": -(-KILLS // 2), "archive": KILLS // 2}
"""How often each is killed; five times in `make soak`. Both Spark jobs lease one capacity."""
CAPACITY = 600
REGISTRATION = RegistrationConfig(roots={"te": "main-dev"})


@dataclass
class Running:
    """A stack and where it listens."""

    local: LocalStack
    endpoints: Endpoints


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("stack") / ".headrace"
    with LocalStack(home, capacity_per_s=CAPACITY, timeout_ms=1_000, trigger_ms=2_000, archive=True) as local:
        endpoints = local.start()
        local.start_archive()
        yield Running(local, endpoints)


def store(stack: Running, job: Job = WRITER) -> verify.Rows:
    """The rows of a job in the datastore."""
    with closing(sqlite3.connect(stack.endpoints.database, timeout=30)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (job.table,)).fetchall():
            return {}
        found = db.execute(f"SELECT source, metric, time_ms, value FROM {job.table}").fetchall()
    rows = {(source, metric, time_ms): value for source, metric, time_ms, value in found}
    assert len(rows) == len(found)
    return rows


def log(stack: Running, topic: str) -> verify.Log:
    ends = stack.endpoints
    return verify.read_log(ends.kafka, ends.prefix + topic, PARTITIONS)


def documents(log: verify.Log) -> list[bytes]:
    return [value or b"" for records in log.values() for _, value in verify.distinct(records)]


def batched(stack: Running) -> list[bytes]:
    return documents(log(stack, "batches"))


def messages(log: verify.Log) -> list[verify.Record]:
    """Records of `raw` that came from MQTT."""
    return [r for records in log.values() for r in records if header(r.headers, "kind") is None]


def gauge(stack: Running, name: str, stage: str) -> int:
    with urllib.request.urlopen(f"{stack.endpoints.streams_url}/metrics", timeout=60) as found:
        lines = [line for line in found.read().decode().splitlines() if line.startswith("headrace_stage{")]
    wanted = [line for line in lines if f'name="{name}"' in line and f'stage="{stage}"' in line]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in wanted)


def missing(stack: Running) -> str:
    """What keeps the stack from being drained: messages of `raw` that are not in the store, row by row. Else empty."""
    stack.local.check()
    sent, expected = len(messages(log(stack, "raw"))), verify.rows_of(batched(stack))
    try:
        taken, open_ = gauge(stack, "in", "registration"), gauge(stack, "open_batches", "batching")
    except OSError as error:
        return str(error)
    other = []
    for job in stack.endpoints.jobs:
        rows = store(stack, job)
        other += sorted((job.name, *key) for key in expected.keys() | rows.keys() if expected.get(key) != rows.get(key))
    if (taken, open_, other) == (sent, 0, []):
        return ""
    return f"{taken} of {sent} messages, {open_} batches open, {len(other)} of {len(expected)} rows: {other[:5]}"


def settle(stack: Running) -> None:
    """Wait until the stack is drained and stays so for two timeouts."""
    deadline, left = time.monotonic() + 600 * PATIENCE, "nothing was seen"
    while left := missing(stack) or (time.sleep(2) or missing(stack)):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def test_bad_input_is_dead_lettered_with_its_reason_and_stops_nobody(stack: Running) -> None:
    ends = stack.endpoints
    good = [("te/device/good///m/before", json.dumps({"time": 1, "v": 1}).encode())]
    bad = [
        ("te/device/good//", b'{"@type": "child-device"'),
        ("te/device/good//", b"\xff\xfe"),
        ("te/device/good///m/broken", b'{"v": '),
        ("te/device/good///m/notutf8", b'{"v": "\xff"}'),
        ("te/device/good///m/empty", b""),
        ("te/device/good///nonsense/x", b"{}"),
        ("te/device/good///m/huge", b'{"v": "' + b"x" * 10_000_000 + b'"}'),
    ]
    client = connect(ends)
    publish(client, [*good, *bad, ("te/device/good///m/after", json.dumps({"time": 2, "v": 2}).encode())])
    client.disconnect()
    producer = Producer({"bootstrap.servers": ends.kafka, "enable.idempotence": True})
    headers = [("topic", b"xx/device/a///m/t"), ("qos", b"1"), ("retain", b"0")]
    producer.produce(f"{ends.prefix}raw", b'{"v": 1}', b"xx", headers=headers)
    assert producer.flush(240) == 0
    settle(stack)

    letters = [json.loads(d) for d in documents(log(stack, "dead-letter"))]
    found = sorted((letter["reason"], letter["topic"]) for letter in letters)
    assert found == sorted(
        [
            ("invalid_payload", "te/device/good//"),
            ("invalid_payload", "te/device/good//"),
            ("invalid", "te/device/good///m/broken"),
            ("invalid", "te/device/good///m/notutf8"),
            ("invalid", "te/device/good///m/empty"),
            ("unknown_channel", "te/device/good///nonsense/x"),
            ("too_large", "te/device/good///m/huge"),
            ("invalid_topic", "xx/device/a///m/t"),
        ]
    )
    kept = {letter["topic"]: letter for letter in letters}
    assert base64.b64decode(kept["te/device/good///m/notutf8"]["payload_base64"]) == b'{"v": "\xff"}'
    rows = store(stack)
    assert rows["te/device/good//", "before.v", 1000] == 1
    assert rows["te/device/good//", "after.v", 2000] == 2


def test_kill_9_of_any_service_loses_nothing_and_doubles_nothing(stack: Running) -> None:
    dice = random.Random(20)
    order = [service for service, kills in SERVICES.items() for _ in range(kills)]
    dice.shuffle(order)
    fleet = Fleet(stack.endpoints).start()
    for service in order:
        time.sleep(dice.uniform(0.3, 2.5))
        os.kill(stack.local.processes[service], signal.SIGKILL)
        stack.local.restart(service)
    enough = max(1_000, len(fleet.acknowledged) + 300)  # through the last one, too
    until(lambda: len(fleet.acknowledged) > enough or not fleet.running, "enough was published")
    fleet.stop()
    settle(stack)

    raw, routed, batches = (log(stack, topic) for topic in ("raw", "routed", "batches"))
    topics = {(header(r.headers, "topic") or b"", r.value or b"") for r in messages(raw)}
    assert len(fleet.acknowledged) > 1_000
    assert all((topic.encode(), payload) in topics for topic, payload in fleet.acknowledged)
    first = verify.registration(raw, REGISTRATION)
    second = verify.batching(routed, BatchingConfig(timeout=stack.endpoints.timeout_ms))
    for partition in range(PARTITIONS):
        seen, expected = verify.distinct(routed[partition]), first[partition].to("routed")
        assert seen == expected[: len(seen)]  # ticks of the last moment may not have been copied yet
        assert verify.distinct(batches[partition]) == second[partition].to("batches")
    assert store(stack) == store(stack, ARCHIVE) == verify.rows_of(documents(batches))
    within_capacity(stack)
    published = {json.loads(payload)["v"] for topic, payload in fleet.acknowledged if "/m/" in topic}
    assert published <= {
        row for (source, metric, _), row in store(stack).items() if "chaos" in source and metric[1:] == ".v"
    }
    asked(stack, first)
    until(lambda: counted(stack) == pure_counts(second), "the counters of batching")


def within_capacity(stack: Running) -> None:
    """No second over both jobs is above what they lease, although both were killed and started again."""
    spent = evidence.dispatches(stack.endpoints.database, 0)
    with closing(sqlite3.connect(stack.endpoints.database, timeout=30)) as db:
        written = dict(db.execute("SELECT job, value FROM hr_total WHERE name = 'inserted'").fetchall())
    assert written.keys() == {WRITER.name, ARCHIVE.name}
    assert sum(cost for _, cost in spent) >= sum(written.values()), "each try is charged"
    assert 0 < highest(spent) <= CAPACITY


COUNTED = ("in", "accepted", "duplicate", "invalid", "members", "opened.new", "opened.conflict", "closed.timeout")


def counted(stack: Running) -> dict[str, int]:
    """The counters of batching as `/v1/status` tells them."""
    status, body = get(stack, "/v1/status")
    return {name: body["counters"]["batching"][name] for name in COUNTED} if status == 200 else {}


def pure_counts(second: dict[int, verify.Pure]) -> dict[str, int]:
    return {name: sum(one.gauges()[name] for one in second.values()) for name in COUNTED}


def asked(stack: Running, first: dict[int, verify.Pure]) -> None:
    """The API answers as the pure state does."""
    (partition,) = [p for p, one in first.items() if one.gauges().get("applied", 0)]
    for path in ("/te/v1/entities", "/te/v1/entities/device/chaos3//twin", "/te/v1/registrations"):
        expected = answer(first[partition].state, REGISTRATION, Request("GET", path))
        until(lambda path=path, expected=expected: get(stack, path) == (expected.status, expected.body), path)


def get(stack: Running, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(stack.endpoints.api_url + path, timeout=60) as found:
            return found.status, json.loads(found.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    except OSError:
        return 0, None
