"""docker-compose.yml from its build to its end: telemetry goes in over MQTT, is known to the API, lies in PostgreSQL.

The profile `two-writers` is part of it: both Spark jobs write into the database, within its one capacity.

The project has a name and ports of its own, so it runs beside another one; it is taken down whatever happens.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.kafka import free_port
from headrace.windows import highest
from tests.support.bridge_process import read_topic
from tests.support.docker import REPOSITORY, eventually

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2400)]

BUILD_S, UP_S, DOWN_S = 1200, 900, 180
WRITTEN_S = 240
PROFILES = ("--profile=demo", "--profile=two-writers")
PORTS = ("KAFKA", "MQTT", "POSTGRES", "STREAMS", "BRIDGE", "API")


@dataclass(frozen=True)
class Compose:
    """One project of the compose file."""

    name: str
    ports: dict[str, int]
    log: Path

    def run(self, *arguments: str, seconds: float, check: bool = True) -> str:
        """Run `docker compose`; returns what it printed."""
        variables = {f"HEADRACE_{part}_PORT": str(port) for part, port in self.ports.items()}
        command = ["docker", "compose", "--progress=plain", "--project-name", self.name, *PROFILES, *arguments]
        ran = subprocess.run(
            command, cwd=REPOSITORY, env={**os.environ, **variables}, timeout=seconds, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(command)}\n{ran.stdout}\n")
        assert not check or ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout[-4000:]}"
        return ran.stdout

    def url(self, part: str) -> str:
        return f"http://127.0.0.1:{self.ports[part]}"

    @property
    def database(self) -> str:
        return f"postgresql://headrace:headrace@127.0.0.1:{self.ports['POSTGRES']}/headrace"


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        body: bytes = response.read()
    return body.decode()


def left_over(project: str) -> list[str]:
    """Containers, volumes and networks of a project."""
    label = f"--filter=label=com.docker.compose.project={project}"
    kinds = (["ps", "--all"], ["volume", "ls"], ["network", "ls"])
    lists = [subprocess.run(["docker", *kind, "--quiet", label], capture_output=True, text=True) for kind in kinds]
    return [name for found in lists for name in found.stdout.split()]


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    """All services, healthy."""
    name = f"headrace-test-{uuid.uuid4().hex[:8]}"
    ports: dict[str, int] = {}
    while len(set(ports.values())) < len(PORTS):
        ports = {part: free_port() for part in PORTS}
    project = Compose(name, ports, tmp_path_factory.mktemp("compose") / "log")
    services = [
        service for service in project.run("config", "--services", seconds=30).split() if service != "publisher"
    ]
    try:
        project.run("build", seconds=BUILD_S)
        try:
            project.run("up", "--detach", "--wait", *services, seconds=UP_S)
        except AssertionError as error:
            said = project.run("logs", "--no-color", "--tail=15", seconds=60, check=False)
            raise AssertionError(f"{error}\n{said[-12_000:]}") from error
        yield project
    finally:
        project.run("logs", "--no-color", seconds=60, check=False)
        project.run("down", "--volumes", "--remove-orphans", "--timeout=20", seconds=DOWN_S, check=False)
    assert left_over(name) == []


def test_telemetry_goes_from_mqtt_to_the_api_and_to_postgres(compose: Compose) -> None:
    said = compose.run("run", "--rm", "publisher", "--mqtt=mosquitto:1883", "--seconds=10", seconds=90)
    counts = re.search(r"published (\d+) messages, 0 without acknowledgement", said)
    assert counts is not None, said
    published = int(counts[1])
    assert published > 100

    taken = eventually(lambda: bridge_counts(compose), lambda n: n["acknowledged"] == published)
    records = read_topic(f"127.0.0.1:{compose.ports['KAFKA']}", "headrace.raw")
    assert sum("topic" in record.headers for record in records) == taken["acknowledged"]

    devices = {"device/main//", "device/cpu//", "device/memory//"}
    eventually(lambda: entities(compose), lambda known: devices <= known)
    eventually(lambda: in_work(compose), lambda left: left == (0, 0))

    members = members_of_batches(compose)
    for job in ("spark", "archive"):
        counted = eventually(lambda job=job: spark_counts(compose, job), lambda n: n["members"] >= members, WRITTEN_S)
        written = ("inserted", "replaced", "repeats", "rows_refused")
        assert counted["rows"] == sum(counted[name] for name in written)
    with psycopg.connect(compose.database) as db:
        rows = db.execute("SELECT source, count(*) FROM measurements GROUP BY source").fetchall()
        archived = db.execute("SELECT source, count(*) FROM archive GROUP BY source").fetchall()
        spent = db.execute("SELECT at_ns, cost FROM hr_dispatch").fetchall()
    assert sorted(archived) == sorted(rows)
    capacity = json.loads(get(f"{compose.url('API')}/v1/capacity/postgres"))
    assert 0 < highest(spent) <= capacity["shared_capacity"] == 500
    assert sum(cost for _, cost in spent) >= 2 * counted["inserted"], "both jobs are among the dispatches"
    assert sum(count for _, count in rows) == counted["inserted"] > 0
    assert {f"te/{device}" for device in devices} <= {source for source, _ in rows}


def test_nothing_in_the_containers_runs_as_root(compose: Compose) -> None:
    for service in compose.run("ps", "--services", seconds=30).split():
        ids = compose.run("exec", "-T", service, "sh", "-c", "cat /proc/1/status", seconds=30)
        assert re.search(r"^Uid:\s+[1-9]", ids, re.MULTILINE), (service, ids)


def bridge_counts(compose: Compose) -> dict[str, int]:
    """The bridge's totals. What it publishes for the stages comes back to it, because it reads all of `te/#`."""
    return totals(get(f"{compose.url('BRIDGE')}/metrics"), "headrace_bridge_")


def totals(text: str, prefix: str) -> dict[str, int]:
    """Counters without labels, by name without prefix and `_total`."""
    found = re.findall(rf"^{prefix}(\w+)_total (\S+)$", text, re.MULTILINE)
    return {name: int(float(count)) for name, count in found}


def metric(url: str, pattern: str) -> int:
    """Sum of the samples that begin so."""
    lines = [line for line in get(f"{url}/metrics").splitlines() if re.match(pattern, line)]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)


def entities(compose: Compose) -> set[str]:
    """What the API knows of the root."""
    found: list[dict[str, Any]] = json.loads(get(f"{compose.url('API')}/te/v1/entities"))
    return {entity["@topic-id"] for entity in found}


def in_work(compose: Compose) -> tuple[int, int]:
    """Records not applied yet, and batches not closed yet."""
    url = compose.url("STREAMS")
    return metric(url, "headrace_stage_lag"), metric(url, r'headrace_stage\{name="open_batches"')


def members_of_batches(compose: Compose) -> int:
    records = read_topic(f"127.0.0.1:{compose.ports['KAFKA']}", "headrace.batches")
    return sum(len(json.loads(record.value)["members"]) for record in records if "kind" not in record.headers)


def spark_counts(compose: Compose, job: str) -> dict[str, int]:
    """A job's own totals, asked for inside its container: it listens on the loopback address there."""
    ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8083/metrics', timeout=4).read().decode())"
    text = compose.run("exec", "-T", job, "python", "-c", ask, seconds=30)
    return totals(text, "headrace_spark_")
