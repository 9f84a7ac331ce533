"""The job file: defaults, and a message that names the field for each thing that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import ConfigError
from headrace_spark.destinations import over_network
from headrace_spark.settings import check, load
from tests.unit.spark.fakes import job

_GOOD = {
    "job": "writer",
    "kafka": "127.0.0.1:1",
    "checkpoint": "/c",
    "sink": "sqlite:////s.db",
    "state_dsn": "sqlite:////t.db",
    "capacity": 100,
    "cost": "per_row(2)",
    "expected_cost_per_record": 20,
}


def write(folder: Path, **changes: object) -> Path:
    values = {name: value for name, value in {**_GOOD, **changes}.items() if value is not None}
    file = folder / "job.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return file


def test_a_small_job_file_is_enough(tmp_path: Path) -> None:
    found = load(write(tmp_path, prefix="h."))
    assert found.subscribed == ["h.batches"]
    assert found.dead_letter_topic == "h.dead-letter"
    assert (found.max, found.request_rows, found.trigger_ms) == (500, 50, 5000)


def test_headroom_makes_requests_smaller(tmp_path: Path) -> None:
    found = load(write(tmp_path, headroom=0.25))
    assert (found.usable, found.request_rows) == (75, 37)


@pytest.mark.parametrize(
    ("sink", "unused"),
    [
        ("postgresql://db.example/t", 0.05),
        ("postgresql://u:p@127.0.0.1:5432,10.0.0.7:5432/t", 0.05),
        ("postgresql://localhost/t?hostaddr=10.0.0.7", 0.05),
        ("postgresql://127.0.0.1/t", 0.0),
        ("postgresql://[::1]:5432/t", 0.0),
        ("postgresql:///t?host=/run/postgresql", 0.0),
        ("https://bulk.example:9200/_bulk", 0.05),
        ("http://localhost:9200/_bulk", 0.0),
        ("sqlite:////t.db", 0.0),
        ("call:json:dumps", 0.0),
    ],
)
def test_a_sink_on_another_host_leaves_a_twentieth_unused_unless_told(tmp_path: Path, sink: str, unused: float) -> None:
    assert load(write(tmp_path, sink=sink)).unused == unused
    told = load(write(tmp_path, sink=sink, headroom=0.0))
    assert (told.unused, told.usable) == (0.0, 100)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"master": "local[2]"}, ["tried once"]),
        ({"master": "yarn"}, []),
        ({"master": "yarn", "spark": {"spark.task.maxFailures": "1"}}, ["tried once"]),
        ({"spark": {"spark.speculation": "true"}}, ["speculation"]),
    ],
)
def test_a_start_warns_of_what_is_not_advised(changes: dict[str, Any], words: list[str]) -> None:
    found = job(**changes).cautions
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_a_delta_table_is_over_a_network_if_it_is_in_a_store_of_objects() -> None:
    found = [over_network(f"delta:{uri}") for uri in ("s3://b/t", "abfss://c@a/t", "/t", "file:///t", "memory://t")]
    assert found == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"capacity": "many"}, "capacity"),
        ({"capacity": 0}, "capacity"),
        ({"capacity": 1}, "cost"),
        ({"cost": "free"}, "cost"),
        ({"job": "a b"}, "job"),
        ({"kafka": None}, "kafka"),
        ({"kafka": ""}, "kafka"),
        ({"checkpoint": ""}, "checkpoint"),
        ({"sink": "mysql://x"}, "sink"),
        ({"state_dsn": "x.db"}, "state_dsn"),
        ({"table": 'a"; drop'}, "table"),
        ({"share": 1.5}, "share"),
        ({"headroom": 0.9}, "headroom"),
        ({"expected_cost_per_record": 0}, "expected_cost_per_record"),
        ({"max_corrupt_share": 0}, "max_corrupt_share"),
        ({"trigger_ms": 0}, "trigger_ms"),
        ({"seen_retention_ms": 0}, "seen_retention_ms"),
        ({"min_offsets_per_trigger": -1}, "min_offsets_per_trigger"),
        ({"path": "staged"}, "path"),
        ({"path": "sideways"}, "path"),
        (
            {"stage_cost": "free", "path": "staged", "sink": "postgresql://a/b", "state_dsn": "postgresql://a/b"},
            "stage_cost",
        ),
        ({"path": "staged", "sink": "postgresql://a/b", "state_dsn": "postgresql://a/b", "master": "yarn"}, "master"),
        ({"path": "staged", "sink": "postgresql://a/b", "state_dsn": "postgresql://a/c"}, "path"),
        ({"sink": "postgresql://a/b", "state_dsn": "postgresql://a/c", "master": "yarn"}, "master"),
        ({"sink": "postgres://a/b", "lease_store": "postgresql://a/b", "master": "yarn"}, "state_dsn"),
        ({"sink": "postgresql://a/b", "lease_store": "redis://a:1", "max_share": 0.05}, "max_share"),
        ({"metrics_port": -1}, "metrics_port"),
        ({"metrics_port": 65536}, "metrics_port"),
        ({"topics": ["a,b"]}, "topics"),
        ({"prefix": "a b."}, "prefix"),
        ({"surprise": 1}, "surprise"),
        ({"sink": "call:module"}, "sink"),
        ({"sink": "http:///_bulk"}, "sink"),
        ({"sink": "https://host:port/_bulk"}, "sink"),
        ({"sink": "ftp://host/_bulk"}, "sink"),
        ({"sink": "http://host/_bulk", "path": "staged"}, "path"),
        ({"sink": "http://host/_bulk", "max_attempts": 0}, "max_attempts"),
        ({"sink": "http://host/_bulk", "max_rounds": -1}, "max_rounds"),
        ({"sink": "http://host/_bulk", "request_timeout_ms": 0}, "request_timeout_ms"),
        ({"sink": "http://host/_bulk", "retry_topic": "a b"}, "retry_topic"),
        ({"sink": "http://host/_bulk", "retry_topic": "headrace.batches"}, "retry_topic"),
        ({"sink": "http://host/_bulk", "retry_topic": "headrace.dead-letter"}, "retry_topic"),
        ({"sink": "http://host/_bulk", "retry_topic": "headrace.writer.again"}, "retry_topic"),
        ({"sink": "http://host/_bulk", "topics": ["headrace.writer.again"]}, "topics"),
        ({"sink": "http://host/_bulk", "on_exhausted": "shrug"}, "on_exhausted"),
        ({"sink": "http://host/_bulk", "charge_header": "X Charge"}, "charge_header"),
        ({"cost": "learned(per_row(1))"}, "cost"),
        ({"cost": "learned()"}, "cost"),
        ({"sink": "http://host/_bulk", "cost": "learned(per_row(1))"}, "cost"),
        ({"sink": "delta:/table", "cost": "learned(per_kib(1))"}, "cost"),
        (
            {
                "stage_cost": "learned(per_row(1))",
                "path": "staged",
                "sink": "postgresql://a/b",
                "state_dsn": "postgresql://a/b",
            },
            "stage_cost",
        ),
        ({"sink": "http://host/_bulk", "key": ["source", "unit"]}, "key: 'unit'"),
        ({"sink": "http://host/_bulk", "key": ["source", "source"]}, "key"),
        ({"sink": "http://host/_bulk", "version": "value"}, "version: 'value'"),
        ({"sink": "http://host/_bulk", "version": "time_ms"}, "version: is part of the key"),
        ({"key": ["source"]}, "key: must not be given"),
        ({"version": "closed_at"}, "version: must not be given"),
        ({"sink": "delta:/table", "cost": "per_kib(1)", "key": ["source"]}, "key: must not be given"),
        ({"sink": "call:json:dumps", "mode": "lanes", "key": ["source"], "max": 50, "cost": "per_row(1)"}, "key: must"),
        ({"sink": "http://host/_bulk", "master": "yarn"}, "state_dsn"),
        ({"sink": "delta:relative/path", "cost": "per_kib(1)"}, "sink"),
        ({"sink": "delta:/table"}, "cost"),
        ({"sink": "delta:/table", "cost": "per_kib(1)", "path": "staged"}, "path"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, **changes))
    assert field in str(caught.value)


def test_a_sink_that_answers_for_each_row_has_two_topics_more(tmp_path: Path) -> None:
    found = load(write(tmp_path, sink="https://host:9200/index/_bulk"))
    assert found.subscribed == ["headrace.batches", "headrace.writer.again"]
    assert found.delayed_topic == "headrace.writer.retry"
    for changes in ({"on_exhausted": "fail"}, {"max_rounds": 0}, {"sink": "sqlite:////s.db"}):
        other = load(write(tmp_path, **{"sink": "https://host:9200/index/_bulk", **changes}))
        assert (other.subscribed, other.delayed_topic) == (["headrace.batches"], "")


def test_a_cost_is_learned_where_the_sink_tells_its_charge(tmp_path: Path) -> None:
    for sink in ({"sink": "http://host/_bulk", "charge_header": "X-Charge"}, {"sink": "call:json:dumps"}):
        found = load(write(tmp_path, cost="learned(per_row(2) + per_request(3))", **sink))
        assert found.cost_of.learned
        assert found.cost_of(5) == 13


def test_a_commit_of_delta_lake_is_bounded_by_bytes_alone(tmp_path: Path) -> None:
    found = load(write(tmp_path, sink="delta:s3://bucket/table", cost="per_kib(1) + per_request(5)", max=1))
    assert found.bounds.rows > 10**9
    assert found.bounds.size == 4 * 1024 * 1024


def test_the_presets_of_a_job_are_those_of_the_spec() -> None:
    found = job()
    assert (found.max_concurrent_batches, found.max_wait_ms, found.weight) == (4, 600_000, 4)
    assert (found.max_attempts, found.max_rounds, found.on_exhausted) == (3, 8, "retry")
    assert (found.share, found.trigger_ms, found.max_corrupt_share) == (1.0, 5_000, 0.5)
    assert found.seen_retention_ms == 7 * 86_400_000


@pytest.mark.parametrize(
    ("spark", "workers"),
    [
        ({}, 1),
        ({"executor.cores": "4", "executor.instances": "3"}, 12),
        ({"executor.cores": "4", "executor.instances": "3", "dynamicAllocation.maxExecutors": "5"}, 12),
        ({"executor.cores": "4", "dynamicAllocation.enabled": "TRUE", "dynamicAllocation.maxExecutors": "5"}, 20),
        ({"executor.cores": "4", "dynamicAllocation.enabled": "true", "cores.max": "8"}, 8),
        ({"executor.cores": "5", "executor.instances": "3", "task.cpus": "2"}, 6),
        ({"executor.cores": "1", "task.cpus": "2"}, 1),
        ({"cores.max": "8", "task.cpus": "2"}, 4),
        ({"cores.max": "1", "task.cpus": "2", "executor.cores": "4", "executor.instances": "9"}, 1),
    ],
)
def test_executors_that_come_and_go_count_by_their_upper_bound(spark: dict[str, str], workers: int) -> None:
    found = job(master="yarn", spark={f"spark.{name}": value for name, value in spark.items()})
    assert found.tasks_at_once == workers


@pytest.mark.parametrize(
    ("master", "cpus", "workers"), [("local[4]", "2", 2), ("local[1]", "2", 1), ("local-cluster[3,4,1024]", "2", 6)]
)
def test_a_task_that_takes_several_cores_is_one_worker(master: str, cpus: str, workers: int) -> None:
    assert job(master=master, spark={"spark.task.cpus": cpus}).tasks_at_once == workers


def test_a_share_over_executors_without_a_bound_is_refused() -> None:
    url, wanted = "postgresql://a/b", {"spark.dynamicAllocation.enabled": "true"}
    shared: dict[str, Any] = {"sink": url, "state_dsn": url, "lease_store": url, "master": "yarn", "headroom": 0.0}
    check(job(**shared, spark=wanted))
    check(job(**shared, spark={**wanted, "spark.dynamicAllocation.maxExecutors": "2"}, max_share=0.5))
    with pytest.raises(ConfigError, match="max_share: with dynamic allocation"):
        check(job(**shared, spark=wanted, max_share=0.5))


def test_a_copy_has_at_most_a_thousand_rows() -> None:
    url = "postgresql://a/b"
    many = job(path="staged", sink=url, state_dsn=url, capacity=1_000_000, max=50_000)
    assert (many.chunk_bounds.rows, many.bounds.rows) == (1_000, 50_000)
    assert job(path="staged", sink=url, state_dsn=url, capacity=1_000_000, max=300).chunk_bounds.rows == 300


def test_a_missing_file_and_bad_toml_are_configuration_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="config"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("= 1")
    with pytest.raises(ConfigError, match="config"):
        load(tmp_path / "bad.toml")


def test_a_consumer_group_and_speculation_are_refused() -> None:
    with pytest.raises(ConfigError, match="kafka_options"):
        check(job(kafka_options={"kafka.group.id": "mine"}))
    with pytest.raises(ConfigError, match="speculation"):
        check(job(spark={"spark.speculation": "true"}))
    check(job(spark={"spark.speculation": "true"}, allow_speculation=True))
