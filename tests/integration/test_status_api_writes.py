"""Writes over HTTP on a real Kafka with a real stream processor: answered, durable, each once, whoever is killed."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.api_process import StatusApi
from tests.support.bridge_process import read_topic
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

ROOTS = {"te": "main-dev", "r1": "main-1", "r2": "main-2"}
ENTITIES = "/te/v1/entities"
FAULT_EXIT = 86


@pytest.fixture
def worker(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[StreamsWorker]:
    one = StreamsWorker(kafka, topic_prefix, tmp_path / "streams", tmp_path / "streams.log", stages="registration")
    one.settings |= {"ROOTS": json.dumps(ROOTS), "CHUNK_RECORDS": "20"}
    yield one
    one.end()


def an_api(worker: StreamsWorker, tmp_path: Path, name: str) -> StatusApi:
    settings = {"ROOTS": json.dumps(ROOTS), "WRITE_WAIT_S": "60"}
    return StatusApi(worker.kafka, worker.prefix, tmp_path / name, tmp_path / f"{name}.log", settings)


@pytest.fixture
def api(worker: StreamsWorker, tmp_path: Path) -> Iterator[StatusApi]:
    one = an_api(worker, tmp_path, "api")
    yield one
    one.end()


@pytest.fixture
def second(worker: StreamsWorker, tmp_path: Path) -> Iterator[StatusApi]:
    one = an_api(worker, tmp_path, "second")
    yield one
    one.end()


def child(ident: str, **more: str) -> dict[str, str]:
    return {"@topic-id": f"device/{ident}", "@type": "child-device", **more}


def requested(worker: StreamsWorker) -> Counter[str]:
    """How many requests for each topic id are in the log."""
    records = read_topic(worker.kafka, f"{worker.prefix}raw")
    bodies = [json.loads(r.value)["body"] for r in records if r.headers.get("kind") == b"request"]
    return Counter(body["@topic-id"] for body in bodies)


def test_a_write_is_answered_when_it_is_durable_and_seen_at_once(worker: StreamsWorker, api: StatusApi) -> None:
    worker.start().wait_ready()
    api.start().wait_ready()
    assert api.ask(ENTITIES, "POST", child("press", name="Press 7")).body == {"@topic-id": "device/press//"}
    press = f"{ENTITIES}/device/press"
    found = api.ask(press)
    assert (found.status, found.body["@id"]) == (200, "main-dev:device:press")
    assert api.ask(f"{press}///twin/name").body == "Press 7"
    service = {"@topic-id": "device/press/service/monitor", "@type": "service"}
    assert api.ask(ENTITIES, "POST", service).status == 201
    tag = found.headers["etag"]
    changed = api.ask(press, "PATCH", {"@health": service["@topic-id"]}, If_Match=tag)
    assert (changed.status, changed.body) == (200, api.ask(press).body)
    assert api.ask(press, "DELETE", If_Match=tag).body["reason"] == "precondition_failed"
    assert api.ask(ENTITIES, "POST", child("press")).body["reason"] == "exists"
    assert api.ask(ENTITIES, "POST", child("x", **{"@parent": "line/hall"})).body["reason"] == "no_parent"
    assert [one["@topic-id"] for one in api.ask(press, "DELETE").body] == ["device/press//", service["@topic-id"]]
    assert (api.ask(press).status, api.ask(press, "DELETE").status) == (404, 204)
    big = "x" * 1_000_000
    assert api.ask(f"{ENTITIES}/device/main///twin/big", "PUT", big).body == big
    assert api.ask(f"{ENTITIES}/device/main///twin/big").body == big
    metrics = api.ask("/metrics").body
    assert 'headrace_api_writes_total{method="POST",route="entities",status="201"} 2.0' in metrics
    assert 'headrace_api_replies_total{whose="own"} 9.0' in metrics
    assert api.terminate() == 0
    assert worker.terminate() == 0


def test_every_instance_gets_its_own_answers(worker: StreamsWorker, api: StatusApi, second: StatusApi) -> None:
    worker.start().wait_ready()
    both = (api.start(), second.start())
    for one in both:
        one.wait_ready()

    def write(number: int) -> None:
        one, root = both[number % 2], list(ROOTS)[number % 3]
        answer = one.ask(f"/{root}/v1/entities", "POST", child(f"d{number}"))
        assert (answer.status, answer.body) == (201, {"@topic-id": f"device/d{number}//"})
        assert one.ask(answer.headers["location"]).status == 200

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(200)))
    assert set(requested(worker).values()) == {1}
    for one in both:
        assert one.terminate() == 0
    assert worker.terminate() == 0


def statuses_read(api: StatusApi) -> int:
    """Records of `registrations` that an instance has read."""
    lines = re.findall(r"^headrace_api_events_offset.* (\S+)$", api.ask("/metrics").body, re.MULTILINE)
    return int(sum(map(float, lines)))


def test_events_go_on_at_another_instance(worker: StreamsWorker, api: StatusApi, second: StatusApi) -> None:
    worker.start().wait_ready()
    api.start().wait_ready()
    assert api.ask(ENTITIES, "POST", child("first")).status == 201  # the main device is known from then on
    until(lambda: statuses_read(api) == 2, "two statuses")
    stream = api.events("/te/v1/registration-events?id=device/press").opened()
    assert api.ask(ENTITIES, "POST", child("press")).status == 201
    assert api.ask(ENTITIES, "POST", child("saw")).status == 201
    first = stream.next()
    assert (first.kind, first.data["state"], first.data["@id"]) == ("status", "registered", "main-dev:device:press")
    stream.close()
    assert api.ask(f"{ENTITIES}/device/press", "DELETE").status == 200
    api.kill()
    second.start().wait_ready()
    stream = second.events("/te/v1/registration-events", Last_Event_ID=first.id)
    known = {(e.data["@topic-id"], e.data["state"]) for e in (stream.next(), stream.next())}
    assert known == {("device/saw//", "registered"), ("device/press//", "removed")}
    other = second.events("/te/v1/registration-events", Last_Event_ID="of-another-log")
    assert other.next().kind == "reset"
    other.close()
    assert second.terminate() == 0  # while a stream is open
    with pytest.raises(EOFError):
        stream.next()
    stream.close()
    assert worker.terminate() == 0


def test_without_a_stream_processor_a_write_is_late_not_lost(worker: StreamsWorker, api: StatusApi) -> None:
    worker.start().wait_ready()
    api.settings |= {"WRITE_WAIT_S": "1.5"}
    api.start().wait_ready()
    worker.kill()
    answer = api.ask(ENTITIES, "POST", child("press"))
    assert (answer.status, answer.body["reason"]) == (504, "timeout")
    assert "is it running?" in answer.body["detail"]
    assert api.ask(ENTITIES).status == 200
    worker.start().wait_ready()
    until(lambda: api.ask(f"{ENTITIES}/device/press").status == 200, f"the write, see {worker.log}")
    assert requested(worker) == {"device/press": 1}
    until(lambda: 'headrace_api_replies_total{whose="late"} 1.0' in api.ask("/metrics").body, "its reply, late")
    assert api.terminate() == 0
    assert worker.terminate() == 0


def replies(worker: StreamsWorker) -> list[tuple[int, bytes]]:
    """Status and id of each."""
    return [
        (json.loads(r.value)["status"], r.headers["id"]) for r in read_topic(worker.kafka, f"{worker.prefix}replies")
    ]


@pytest.mark.parametrize(
    "step", [pytest.param(2, marks=pytest.mark.soak), 3, pytest.param(4, marks=pytest.mark.soak), 5, 6]
)
def test_a_crash_at_any_point_of_a_request_answers_once_or_says_that_the_answer_is_lost(
    worker: StreamsWorker, api: StatusApi, step: int
) -> None:
    """Before the changelog has it, the request is applied anew and answered; behind it, only the answer can be lost."""
    durable, answered = step >= 4, step in (2, 3, 6)
    worker.at_once().start().wait_ready()
    worker.kill()
    worker.start(FAULT=f"{step}:1").wait_ready()
    api.settings |= {"WRITE_WAIT_S": "60" if answered else "6"}
    api.start().wait_ready()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(api.ask, ENTITIES, "POST", child("press", name="Press 7"))
        assert worker.running.wait(300) == FAULT_EXIT
        assert bool(replies(worker)) == (step == 6)
        worker.start().wait_ready()
        answer = asked.result(90)
    if answered:
        assert (answer.status, answer.body) == (201, {"@topic-id": "device/press//"})
    else:
        assert (answer.status, answer.body["reason"]) == (504, "timeout")
        assert "was processed, but its answer is lost" in answer.body["detail"]
    assert api.ask(f"{ENTITIES}/device/press///twin/name").body == "Press 7"
    assert requested(worker) == {"device/press": 1}
    assert len(replies(worker)) == (0 if durable and not answered else 1)
    registered = [r.headers["id"] for r in read_topic(worker.kafka, f"{worker.prefix}routed") if r.key == b"te"]
    assert len(registered) == (4 if step == 3 else 2)
    assert len(set(registered)) == 2, "a repeat has the same id"

    again = next(r for r in read_topic(worker.kafka, f"{worker.prefix}raw") if r.headers.get("kind") == b"request")
    producer = Producer(
        {"bootstrap.servers": worker.kafka, "partitioner": "murmur2_random", "enable.idempotence": True}
    )
    producer.produce(
        f"{worker.prefix}raw", again.value, again.key, again.partition, headers=list(again.headers.items())
    )
    assert producer.flush(240) == 0
    until(lambda: 409 in [status for status, _ in replies(worker)], "the record that came twice is refused")
    assert api.ask(f"{ENTITIES}/device/press///twin/name").body == "Press 7"
    assert len({id_ for _, id_ in replies(worker)}) == len(replies(worker))
    assert api.terminate() == 0
    assert worker.terminate() == 0


class Writers:
    """Threads that register devices, each with a name of its own, and keep what they were told."""

    def __init__(self, api: StatusApi, threads: int) -> None:
        self.told: dict[str, int] = {}
        """Status by name, 0: the connection broke."""
        self._api, self._numbers, self._ending = api, itertools.count(), threading.Event()
        self._threads = [threading.Thread(target=self._write) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        while not self._ending.is_set():
            name = f"d{next(self._numbers)}"
            try:
                self.told[name] = self._api.ask(ENTITIES, "POST", child(name)).status
            except (OSError, http.client.HTTPException):
                self.told[name] = 0
                self._ending.wait(0.2)

    def acknowledged(self) -> int:
        return sum(status == 201 for status in list(self.told.values()))

    def more(self, count: int) -> None:
        """Wait for that many more acknowledged writes."""
        wanted = self.acknowledged() + count
        until(lambda: self.acknowledged() >= wanted, f"{count} more writes", 120)

    def end(self) -> dict[str, int]:
        self._ending.set()
        for thread in self._threads:
            thread.join(100)
        return self.told


def check(worker: StreamsWorker, api: StatusApi, told: dict[str, int]) -> None:
    """What was acknowledged is there; nothing was asked for twice; what was refused is not there."""
    until(lambda: sum(api.ask("/readyz").body["lag"].values()) == 0, "no lag")
    there = {name for name in told if api.ask(f"{ENTITIES}/device/{name}").status == 200}
    assert {name for name, status in told.items() if status == 201} <= there
    assert set(told.values()) <= {201, 503, 504, 0}
    asked = requested(worker)
    assert not [name for name, count in asked.items() if count > 1]
    assert there <= {name.removeprefix("device/") for name in asked}
    assert not {name for name, status in told.items() if status == 503} & there


def test_what_was_acknowledged_survives_kills_of_the_stream_processor(worker: StreamsWorker, api: StatusApi) -> None:
    worker.start().wait_ready()
    api.start().wait_ready()
    writers = Writers(api, 4)
    try:
        for _ in range(2):
            writers.more(20)
            worker.kill()
            worker.start()
        writers.more(20)
    finally:
        told = writers.end()
    check(worker, api, told)
    assert api.terminate() == 0
    assert worker.terminate() == 0


def test_kills_of_the_api_make_no_write_twice(worker: StreamsWorker, api: StatusApi) -> None:
    worker.start().wait_ready()
    api.start().wait_ready()
    writers = Writers(api, 4)
    try:
        for _ in range(2):
            writers.more(20)
            api.kill()
            api.start().wait_ready()
        writers.more(20)
    finally:
        told = writers.end()
    check(worker, api, told)
    assert 0 in told.values()
    assert api.terminate() == 0
    assert worker.terminate() == 0
