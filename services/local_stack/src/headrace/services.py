"""What a local stack consists of: for each service its command, environment, readiness and bounds.

A service is ready when its check says so: a URL that answers 200, or a test of its own. `rank` says what waits for
what: Kafka and the MQTT broker (0) start together, all else (1) when Kafka has the topics; they stop the other way
round. Every service keeps to a memory bound: the JVMs by their heap, the others by the data segment.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace import leasing
from headrace.endpoints import ARCHIVE, WRITER, Job
from headrace.jars import connector_jars
from headrace.java import java
from headrace.supervisor import Child

USUAL_PORTS = {
    "kafka": 9092,
    "kafka-controller": 9093,
    "mqtt": 1883,
    "bridge": 8081,
    "streams": 8082,
    "api": 8080,
    "spark": 8083,
    "archive": 8084,
    "capacity": 8085,
}
PARTITIONS = 4
ROOTS = {"te": "main-dev"}
COST = "per_row(1)"
KAFKA_HEAP = "512m"
SPARK_HEAP = {WRITER: "1g", ARCHIVE: "512m"}
SPARK_MASTER = {WRITER: "local[2,4]", ARCHIVE: "local[1,4]"}
EVERY = {WRITER: 1, ARCHIVE: 5}
"""Triggers of the setup between two micro-batches: what is large and rare costs less of the machine."""
REQUESTS_PER_S = 10
"""So many requests fill the capacity at least: jobs take turns within a second, and hardly anything stays unused."""
DATA_BYTES = 4 * 1024**3
SESSION_TIMEOUT_S = 10
INSTANCE = "local-stack"  # so a stream processor that was killed gets its partitions back at once
ANSWER_S = 5
STOP_S = {"kafka": 20.0, "mqtt": 10.0}
STOP_DEFAULT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What the specifications depend on. Times in ms, capacity in units per second;
    `batching`: further settings of batching.md 3."""

    home: Path
    prefix: str
    ports: dict[str, int]
    mqtt_protocol: str
    capacity_per_s: int
    timeout_ms: int
    trigger_ms: int
    batching: Mapping[str, int] = field(default_factory=dict)

    @property
    def kafka(self) -> str:
        """Bootstrap address."""
        return f"127.0.0.1:{self.ports['kafka']}"

    @property
    def database(self) -> Path:
        """SQLite file, sink and state of the jobs."""
        return self.home / "spark" / "headrace.db"

    @property
    def lease_store(self) -> str:
        """Address of the coordinator."""
        return f"tcp://127.0.0.1:{self.ports['capacity']}"

    def url(self, name: str) -> str:
        """Base URL of a service."""
        return f"http://127.0.0.1:{self.ports[name]}"


@dataclass(frozen=True, kw_only=True)
class Service:
    """One child process. `address` is for people; `ready` gets the child whose readiness is asked for."""

    name: str
    argv: list[str]
    ready: Callable[[Child], bool]
    address: str
    rank: int = 1
    env: dict[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None

    @property
    def stop_s(self) -> float:
        """How long a stop may take before SIGKILL."""
        return STOP_S.get(self.name, STOP_DEFAULT_S)


def bridge(setup: Setup) -> Service:
    """MQTT <-> Kafka."""
    values = {
        "MQTT_HOST": "127.0.0.1",
        "MQTT_PORT": str(setup.ports["mqtt"]),
        "MQTT_VERSION": setup.mqtt_protocol,
        "KAFKA": setup.kafka,
        "PREFIX": setup.prefix,
        "HTTP_PORT": str(setup.ports["bridge"]),
        "STATE_DIR": str(setup.home / "bridge"),
    }
    return _python("bridge", setup, ["-m", "headrace_bridge"], "HEADRACE_BRIDGE_", values)


def streams(setup: Setup) -> Service:
    """Registration and batching."""
    values = {
        "KAFKA": setup.kafka,
        "PREFIX": setup.prefix,
        "HTTP_PORT": str(setup.ports["streams"]),
        "DATA_DIR": str(setup.home / "streams"),
        "ROOTS": json.dumps(ROOTS),
        "BATCHING": json.dumps({"timeout": setup.timeout_ms, **setup.batching}),
        "PARTITIONS": str(PARTITIONS),
        "SESSION_TIMEOUT_S": str(SESSION_TIMEOUT_S),
        "INSTANCE": INSTANCE,
    }
    return _python("streams", setup, ["-m", "headrace_streams"], "HEADRACE_STREAMS_", values)


def api(setup: Setup) -> Service:
    """Who is registered."""
    values = {
        "KAFKA": setup.kafka,
        "PREFIX": setup.prefix,
        "HTTP_PORT": str(setup.ports["api"]),
        "DATA_DIR": str(setup.home / "api"),
        "ROOTS": json.dumps(ROOTS),
        "REGISTRATION": "{}",
        "CAPACITY_STORE": setup.lease_store,
        "CAPACITY_TOKEN_FILE": str(leasing.token_file(setup.home)),
        "CAPACITY_RESOURCES": json.dumps([leasing.RESOURCE]),
    }
    return _python("api", setup, ["-m", "headrace_api"], "HEADRACE_API_", values)


def spark(setup: Setup) -> Service:
    """The Spark writer: batches into the table of measurements."""
    return _job(setup, WRITER)


def archive(setup: Setup) -> Service:
    """A second job, of its own topic offsets and table, into the same datastore: small, and started last."""
    return _job(setup, ARCHIVE)


def _job(setup: Setup, job: Job) -> Service:
    folder = setup.home / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{job.name}.toml"
    file.write_text(job_file(setup, job))
    runtime, scratch = Path(java()).resolve().parent.parent, folder / f"scratch-{job.name}"
    return Service(
        name=job.service,
        argv=[sys.executable, "-m", "headrace_spark.jobs.writer", "--config", str(file)],
        env={"JAVA_HOME": str(runtime), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(scratch)},
        ready=lambda _: answers(f"{setup.url(job.service)}/readyz"),
        address=setup.url(job.service),
    )


def job_file(setup: Setup, job: Job) -> str:
    """A job's settings as TOML."""
    checkpoint = "checkpoint" if job is WRITER else f"checkpoint-{job.name}"
    settings = {
        "job": job.name,
        "kafka": setup.kafka,
        "prefix": setup.prefix,
        "checkpoint": str(setup.home / "spark" / checkpoint),
        "sink": f"sqlite://{setup.database}",
        "state_dsn": f"sqlite://{setup.database}",
        "table": job.table,
        "capacity": setup.capacity_per_s,
        "lease_store": setup.lease_store,
        "lease_token_file": str(leasing.token_file(setup.home)),
        "resource": leasing.RESOURCE,
        "cost": COST,
        "expected_cost_per_record": 4.0,
        "max": max(1, min(100, setup.capacity_per_s // REQUESTS_PER_S)),
        "trigger_ms": setup.trigger_ms * EVERY[job],
        "stop_timeout_ms": 10_000,
        "metrics_port": setup.ports[job.service],
        "master": SPARK_MASTER[job],
    }
    options = {
        "spark.driver.memory": SPARK_HEAP[job],
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.jars": ",".join(str(jar) for jar in connector_jars()),
        "spark.jars.packages": "",
        "spark.sql.streaming.metricsEnabled": "false",
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    return "\n".join([*lines, "[spark]", *(f"{json.dumps(n)} = {json.dumps(v)}" for n, v in options.items()), ""])


def answers(url: str) -> bool:
    """Whether a GET is answered with 200 soon."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):
        return False


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _python(name: str, setup: Setup, arguments: list[str], prefix: str, values: dict[str, str]) -> Service:
    ready_url = f"{setup.url(name)}/readyz"
    return Service(
        name=name,
        argv=[sys.executable, *arguments],
        env={prefix + key: value for key, value in values.items()},
        ready=lambda _: answers(ready_url),
        address=setup.url(name),
        memory_bytes=DATA_BYTES,
    )


def environment(service: Service) -> dict[str, str]:
    """What the child gets: ours and its own."""
    return {**os.environ, **service.env}
