"""Timelines over HTTP on a real Kafka, whose worker is killed in between: nothing is lost (timeline.md 17)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from tests.support.api_process import NOTHING, Answer, StatusApi
from tests.support.streams_worker import StreamsWorker, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(280)]

JOBS = {"partitions": 2, "bucket_count": 8}
BASE = "/v1/timelines/jobs"


class Service(NamedTuple):
    """A worker of a timeline alone, so there is no topic `raw`, and an API beside it."""

    worker: StreamsWorker
    api: StatusApi

    def ask(self, method: str, path: str, sent: Any = NOTHING, **headers: str) -> Answer:
        return self.api.ask(BASE + path, method, sent, **headers)

    def owner(self, method: str, path: str, sent: Any = NOTHING, **headers: str) -> Answer:
        return self.ask(method, path, sent, X_Producer_Group="billing", **headers)

    def consumer(self, method: str, path: str, sent: Any = NOTHING, **headers: str) -> Answer:
        return self.ask(method, path, sent, X_Consumer_Id="w1", **headers)

    def served(self) -> bool:
        try:
            return self.ask("GET", "/").status == 200
        except (OSError, HTTPException):
            return False


@pytest.fixture
def service(kafka: str, topic_prefix: str, tmp_path: Path) -> Iterator[Service]:
    worker = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "worker.log", stages="")
    worker.settings["TIMELINES"] = json.dumps({"jobs": JOBS})
    api = StatusApi(kafka, topic_prefix, tmp_path / "api", tmp_path / "api.log", {"WRITE_WAIT_S": "60"})
    worker.at_once().start()
    api.start()
    one = Service(worker, api)
    until(one.served, f"the timeline, see {worker.log} and {api.log}")
    yield one
    api.end()
    worker.end()


def test_a_timeline_over_http_loses_nothing_when_its_worker_is_killed(service: Service) -> None:
    # who has it; and the worker's own word on what it restores
    shown = service.ask("GET", "/").body
    assert [one["owner"] for one in shown["partitions"]] == ["one@127.0.0.1"] * 2
    assert json.loads(service.worker.get("/readyz")) == {"ready": True, "recovering": []}

    # created in its log; that outlives the kill below
    assert service.ask("PUT", "/", {"max_poll": 100}).status == 201

    # created, repeated, moved, refused, cancelled
    sent = {"id": "bill/7", "delay_ms": 600_000, "body": "pay"}
    first = service.owner("POST", "/messages", sent, Idempotency_Key="k1")
    again = service.owner("POST", "/messages", sent, Idempotency_Key="k1")
    assert (first.status, again.status, again.headers["idempotent-replay"]) == (201, 200, "true")
    assert first.body == again.body
    moved = service.owner("PATCH", "/messages/bill%2F7", {"delay_ms": 700_000}, If_Match=first.headers["etag"])
    assert (moved.status, moved.headers["etag"]) == (200, '"2"')
    stale = service.owner("PATCH", "/messages/bill%2F7", {"delay_ms": 5}, If_Match=first.headers["etag"])
    assert (stale.status, stale.body["code"], stale.body["version"]) == (412, "VERSION_MISMATCH", 2)
    assert service.owner("DELETE", "/messages/bill%2F7").status == 204
    assert service.ask("GET", "/messages/bill%2F7").status == 404

    # polled by one who waits over a kill of the worker; the lease counts from the grant
    with ThreadPoolExecutor(2) as threads:
        wish = {"lease_ms": 60_000, "limit": 1, "wait_ms": 30_000}
        waits = threads.submit(service.consumer, "POST", "/leases", wish)
        until(lambda: service.worker.metric(r'headrace_stage\{name="waiters"') == 2, "both partitions wait")
        assert service.owner("POST", "/messages", {"id": "job", "delay_ms": 3_000, "body": "work"}).status == 201
        service.worker.kill()
        # written while nobody is there to answer, and repeated until somebody is
        late = threads.submit(service.owner, "POST", "/messages", {"id": "late", "delay_ms": 0}, Idempotency_Key="k2")
        service.worker.start()
        answer = late.result()
        polled = waits.result()
    while answer.status == 504:
        answer = service.owner("POST", "/messages", {"id": "late", "delay_ms": 0}, Idempotency_Key="k2")
    assert answer.status in (200, 201)
    while polled.status in (204, 504):  # the worker took longer to come back than the poll waited
        polled = service.consumer("POST", "/leases", wish)
    assert polled.status == 200, polled
    [lease] = polled.body["leases"]
    place, due = f"/leases/{lease['lease_id']}", lease["due_at"]
    assert lease["id"] in ("job", "late")
    assert due <= int(polled.headers["x-timeline-now"])

    assert service.ask("GET", "/").body["settings"]["max_poll"] == 100
    assert service.ask("PUT", "/", {"max_poll": 100}).status == 200

    # extended, released, leased anew, completed, each once
    assert service.consumer("PATCH", place, {"lease_ms": 90_000}).status == 200
    assert service.consumer("POST", place + "/release", {"delay_ms": 100}).status == 200
    assert service.consumer("DELETE", place).body["code"] == "NOT_LEASE_HOLDER"
    done = set[str]()
    while len(done) < 2:
        for one in (service.consumer("POST", "/leases", wish).body or {"leases": []})["leases"]:
            assert service.consumer("DELETE", f"/leases/{one['lease_id']}").status == 204
            assert one["id"] not in done
            done.add(one["id"])
    assert done == {"job", "late"}
    assert service.ask("GET", "/counts").body == {"total": 0}
    assert service.api.terminate() == 0
    assert service.worker.terminate() == 0
    verified_and_dumped(service.worker)


def verified_and_dumped(worker: StreamsWorker) -> None:
    """`headrace state` knows a timeline without being told its settings."""
    where = ["--kafka", worker.kafka, "--prefix", worker.prefix]
    equal = CliRunner().invoke(app, ["state", "verify", "timeline.jobs", *where, "--data-dir", str(worker.data_dir)])
    assert equal.exit_code == 0, equal.output
    assert [" equal: " in line for line in equal.stdout.splitlines()] == [True, True]
    dumped = CliRunner().invoke(app, ["state", "dump", "timeline.jobs", "--json", *where])
    items = [json.loads(line) for line in dumped.stdout.splitlines() if "family" in line]
    assert not any("problem" in item for item in items)
    deleted = {item["key"]["id"]: item["value"]["deleted_by"] for item in items if item["family"] == "message"}
    assert deleted == {"bill/7": "billing", "job": "w1", "late": "w1"}
