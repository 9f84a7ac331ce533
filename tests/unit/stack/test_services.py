"""The specifications say what each service understands: its own settings class reads them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from headrace import leasing, services, topics
from headrace.endpoints import ARCHIVE, WRITER, Job
from headrace.services import Service, Setup
from headrace_api.settings import Settings as ApiSettings
from headrace_bridge.settings import BridgeSettings
from headrace_spark.settings import load
from headrace_streams import stages
from headrace_streams.settings import StreamsSettings
from headrace_streams.topics import topic_config, wanted


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    names = list(services.USUAL_PORTS)
    return Setup(
        home=tmp_path, prefix="p.", ports={name: 20_001 + names.index(name) for name in names}, mqtt_protocol="3.1.1",
        capacity_per_s=150, timeout_ms=700, trigger_ms=900,
    )  # fmt: skip


def apply(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service.env.items():
        monkeypatch.setenv(name, value)


def test_the_bridge_understands_its_environment(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(services.bridge(setup), monkeypatch)
    read = BridgeSettings()
    assert (read.kafka, read.prefix, read.mqtt_port, read.mqtt_version) == (setup.kafka, "p.", 20_003, "3.1.1")
    assert (read.http_port, read.state_dir) == (setup.ports["bridge"], setup.home / "bridge")


def test_the_stream_processor_understands_its_environment(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(services.streams(setup), monkeypatch)
    read = StreamsSettings()
    assert (read.kafka, read.prefix, read.partitions, read.roots) == (setup.kafka, "p.", 4, {"te": "main-dev"})
    assert read.batching == {"timeout": 700}
    assert [spec.name for spec in stages.load(read)] == list(topics.STAGES)


def test_the_api_understands_its_environment(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(services.api(setup), monkeypatch)
    read = ApiSettings()
    assert (read.kafka, read.prefix, read.http_port) == (setup.kafka, "p.", setup.ports["api"])
    assert (read.data_dir, read.roots) == (setup.home / "api", {"te": "main-dev"})
    assert (read.capacity_store, read.capacity_resources) == (setup.lease_store, [leasing.RESOURCE])


@pytest.mark.parametrize("job", [WRITER, ARCHIVE], ids=lambda job: job.name)
def test_a_job_understands_its_file_and_its_jvm_is_bounded(setup: Setup, job: Job) -> None:
    (setup.home / "job.toml").write_text(services.job_file(setup, job))
    read = load(setup.home / "job.toml")
    assert (read.kafka, read.capacity, read.cost) == (setup.kafka, 150, services.COST)
    assert read.trigger_ms == {"writer": 900, "archive": 4500}[job.name]
    assert read.sink == read.state_dsn == f"sqlite://{setup.database}"
    assert (read.job, read.table, read.metrics_port) == (job.name, job.table, setup.ports[job.service])
    assert read.spark["spark.driver.memory"] == services.SPARK_HEAP[job]
    assert all(Path(jar).is_file() for jar in read.spark["spark.jars"].split(","))


def test_both_jobs_lease_one_resource_and_share_nothing_else_but_the_datastore(setup: Setup) -> None:
    one, two = (tomllib.loads(services.job_file(setup, job)) for job in (WRITER, ARCHIVE))
    same = {name for name in one if one[name] == two[name]}
    assert {"lease_store", "lease_token_file", "resource", "capacity", "cost", "sink", "state_dsn", "kafka"} <= same
    assert same.isdisjoint({"job", "table", "checkpoint", "metrics_port"})


@pytest.mark.parametrize("capacity", [1, 2, 3, 19, 150, 10_000])
def test_a_request_is_never_more_than_a_tenth_of_a_second_of_capacity_or_one_row(setup: Setup, capacity: int) -> None:
    job = tomllib.loads(services.job_file(Setup(**{**vars(setup), "capacity_per_s": capacity}), WRITER))
    assert 1 <= job["max"] <= max(1, capacity // 10)


def test_topics_have_the_settings_that_the_stream_processor_gives_them() -> None:
    ours = topics.settings_of_topics()
    limit = StreamsSettings().max_request_bytes + 64 * 1024
    theirs = {name: topic_config(name, limit) for name in wanted(stages.load(StreamsSettings()))}
    assert {name: ours[name] for name in theirs} == theirs
