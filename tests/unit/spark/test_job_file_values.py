"""Every key of the job file: a wrong type and wrong values end the job with exit code 2 and name the key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from headrace_spark import capacity, exits, references
from headrace_spark.audit import Audit
from headrace_spark.backfill import Backfill
from headrace_spark.jobs.backfill import run as run_backfill
from headrace_spark.jobs.init import TEMPLATE
from headrace_spark.jobs.process import run_job
from headrace_spark.settings import Settings
from tests.unit.spark.test_settings import write

FAR = 10**12 + 1
PG = "postgresql://u:Waldkauz@h/d"
STAGED = {"path": "staged", "sink": PG, "state_dsn": PG}
LANES = {"mode": "lanes", "sink": "call:json:dumps", "max": 10}
SWAPPED = {"from_time": "2026-01-02T00:00:00Z", "to_time": "2026-01-01T00:00:00Z"}
HTTP = {"sink": "http://host/_bulk"}

WRONG: dict[str, list[Any]] = {
    "job": ["", "a b", "a" * 101, "../a"],
    "kafka": ["", "host", "host:port", "a:1,,b:2", "http://a:1/x"],
    "checkpoint": [
        "", " ", "hdfs:checkpoint", "hdfs://host", "hdfs://host/", "hdfs:///", "file:c", "file://host/c",
        "s3a://key:Waldkauz@bucket/c", "hdfs://[::1/c", "hdfs://host/c?a=1", "hdfs://host/c#a", "hdfs://host/a/../c",
        "hdfs://host/a b", "hdfs://host/{a}",
    ],
    "sink": ["", "mysql://h/d", "sqlite:///", "postgresql://u:Waldkauz@[::1/d", "call:json", "http://", "delta:table"],
    "state_dsn": ["", "s.db", "sqlite:///", "postgresql://u:Waldkauz@[::1/d"],
    "capacity": [0, -1, FAR],
    "cost": ["", "free", "per_row(0)", "per_row(-1)", "call(json)", "call(no.such:thing)", "per_row(101)"],
    "expected_cost_per_record": [0, -1.0, "inf", "nan"],
    "prefix": ["a b.", "a" * 201, "a/"],
    "topics": [["a b"], ["a", "a"], [""], ["headrace.dead-letter"]],
    "table": ["", 'a"b', "a" * 64, "1a", "hr_seen", "HR_total"],
    "path": ["sideways", {**STAGED, "state_dsn": "postgresql://h/other"}, {"path": "staged"}],
    "stage_cost": ["free", {**STAGED, "stage_cost": "per_row(101)"}],
    "mode": ["sorted"],
    "lane_mode": ["sometimes"],
    "lateness_ms": [-1, FAR],
    "linger_ms": [-1, FAR],
    "max_send_ms": [0, FAR],
    "on_reject": ["shrug"],
    "max_attempts": [0, FAR],
    "max_rounds": [-1, FAR],
    "on_exhausted": ["shrug"],
    "retry_topic": ["a b", {**HTTP, "retry_topic": "headrace.batches"}],
    "request_timeout_ms": [0, FAR],
    "charge_header": ["a b", "a:"],
    "key": [{**HTTP, "key": ["none"]}, {**HTTP, "key": ["source", "source"]}, {"key": ["source"]}],
    "version": [{**HTTP, "version": "none"}, {"version": "time"}],
    "headers": [{"headers": ["id"]}, {**HTTP, "headers": [""]}, {**HTTP, "headers": ["id", "id"]}],
    "authorization_file": [],
    "max": [0, FAR],
    "max_bytes": [0, FAR],
    "share": [0, 1.01, -0.5, "nan"],
    "headroom": [-0.1, 0.51, 0.0005, "nan"],
    "lease_store": ["ftp://h", "somewhere", "tcp://host", "tcp://:1", "postgresql://u:Waldkauz@[::1/d", "redis://"],
    "lease_token": [{"lease_store": "tcp://h:1"}],
    "lease_token_file": [{"lease_store": "tcp://h:1"}],
    "resource": [],
    "weight": [0, FAR],
    "handover": ["", "inherits"],
    "max_share": [0, 1.01, 0.0005, {"max_share": 0.04, "lease_store": "redis://h:1"},
                  {**HTTP, "max_share": 0.06, "lease_store": "redis://h:1"}],
    "max_concurrent_batches": [0, FAR],
    "max_wait_ms": [0, FAR],
    "factor": [-1, {"factor": 1, "capacity": 100_000, "lease_store": "redis://h:1"}],
    "trigger_ms": [0, FAR],
    "available_now": [{**LANES, "available_now": True}],
    "append": [True],
    "min_offsets_per_trigger": [-1, FAR],
    "max_trigger_delay_ms": [-1, FAR],
    "metrics_port": [-1, 65536],
    "metrics_host": ["", " "],
    "max_corrupt_share": [0, 1.01],
    "max_document_bytes": [0, FAR],
    "stop_timeout_ms": [0, FAR],
    "sink_down_max_ms": [0, FAR],
    "seen_retention_ms": [0, FAR],
    "allow_speculation": [],
    "master": ["", "nowhere", "local[", "local[two]", "local-cluster[2]", {**STAGED, "master": "spark://h:7077"}],
    "spark": [
        {"spark.speculation": "true"}, {"spark.cores.max": "many"}, {"spark.executor.cores": "0"},
        {"spark.task.maxFailures": "-1"}, {"spark.task.cpus": "two"}, {"spark.dynamicAllocation.maxExecutors": "0"},
        {"spark.python.worker.reuse": "false"}, {"spark.x": "${env:PATH}"},
    ],
    "kafka_options": [{"group.id": "mine"}, {"no.such.option": "1"}, {"kafka.isolation.level": "read_uncommitted"}],
    "audit": [
        {"from_time": "yesterday"}, {"routed": "a b"}, {"batches": "a b"}, {"batching": {"window": -1}},
        {"batching": {"no_such": 1}}, {"surprise": 1}, {"from_offsets": {"other-0": 1}}, {"to_offsets": {"routed": 1}},
        SWAPPED,
    ],
    "backfill": [
        {"name": "a b"}, {"chunk_records": -1}, {"weight": 0}, {"max_share": 0}, {"alone": "yes"}, {"surprise": 1},
        {"from_offsets": {"other-0": 1}}, {"to_offsets": {"headrace.batches-0": -1}}, {"from_time": 5},
        SWAPPED,
    ],
}  # fmt: skip
"""By key; a table is the whole of several keys, or of the table of that name. Empty: any text or truth is right."""
TABLES = ("spark", "kafka_options", "audit", "backfill")
TYPES = {"str": 5, "int": "5", "float": "5", "bool": "true", "list": "a", "dict": "a"}
CASES = [(key, value) for key, values in WRONG.items() for value in values]


@pytest.fixture(autouse=True)
def logging() -> Iterator[None]:
    """The log of a job that runs in this process is no longer that of the tests after it."""
    yield
    structlog.reset_defaults()
    references._KNOWN.clear()


def ended(file: Path, capsys: pytest.CaptureFixture[str], run: Any = lambda _: exits.DONE) -> tuple[int, str]:
    """Exit code and log of the job."""
    capsys.readouterr()
    code = run_job(file, run)
    return code, capsys.readouterr().err


def file_of(folder: Path, key: str, value: Any) -> Path:
    """A job file that is right but for this."""
    if key in TABLES and isinstance(value, dict):
        file = write(folder)
        file.write_text(file.read_text() + f"{key} = {toml(value)}\n")
        return file
    if isinstance(value, dict):
        return write(folder, **value)
    file = write(folder, **{key: None})
    text = value if value in ("nan", "inf") else toml(value)
    file.write_text(f"{key} = {text}\n" + file.read_text())
    return file


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize(("key", "value"), CASES, ids=[f"{key}-{number}" for number, (key, _) in enumerate(CASES)])
def test_a_wrong_value_ends_the_job_with_exit_code_2_and_names_the_key(
    key: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, log = ended(file_of(tmp_path, key, value), capsys)
    assert code == exits.CONFIGURATION, log
    error = json.loads(log)["error"]
    assert key in error, error
    assert "Waldkauz" not in log
    for name in value if key in TABLES else ():
        assert name.removeprefix("kafka.") in error, error


@pytest.mark.parametrize("key", [field.name for field in msgspec.structs.fields(Settings)])
def test_a_wrong_type_ends_the_job_with_exit_code_2_and_names_the_key(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    default = next(field for field in msgspec.structs.fields(Settings) if field.name == key)
    kind = getattr(default.type, "__name__", str(default.type))
    wrong = 5 if kind in ("str", "Literal", "dict", "list", "Audit", "Backfill") else "wrong"
    code, log = ended(file_of(tmp_path, key, wrong), capsys)
    assert (code, f"$.{key}" in log) == (exits.CONFIGURATION, True), log


def test_every_key_has_its_wrong_values() -> None:
    assert WRONG.keys() == {field.name for field in msgspec.structs.fields(Settings)}
    tables = {"audit": Audit, "backfill": Backfill}
    for name, kind in tables.items():
        tried = {key for value in WRONG[name] for key in value}
        assert tried == {field.name for field in msgspec.structs.fields(kind)} | {"surprise"}
    missing = [key for key in WRONG if f"\n{key} = " not in TEMPLATE and f"\n# {key} = " not in TEMPLATE]
    assert missing == list(TABLES), "the others are tables, and each has its own"
    for table in TABLES:
        assert f"# [{table}]" in TEMPLATE


def test_a_secret_is_in_no_line_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB", "Wald kauz/@")
    monkeypatch.setenv("TOKEN", "Steinkauz")
    token = {"lease_token": "${env:TOKEN}", "lease_store": "tcp://h:1"}
    file = write(tmp_path, sink="postgresql://u:${env:DB}@h/d", state_dsn="postgresql://u:in-clear@h/d", **token)

    def fails(settings: Settings) -> int:
        structlog.get_logger().warning("sink down", error=f"cannot reach {settings.sink}", token=settings.lease_token)
        raise RuntimeError(f"{settings.state_dsn} is gone")

    code, log = ended(file, capsys, fails)
    assert code == exits.FAILURE
    for secret in ("Wald", "kauz", "in-clear"):
        assert secret not in log
    assert "postgresql://u:...@h/d is gone" in log


def test_a_token_file_that_is_not_there_ends_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, lease_store="tcp://127.0.0.1:1", lease_token_file="/none/here")
    code, log = ended(file, capsys, lambda settings: bool(capacity.in_driver(settings)))
    assert (code, "lease_token_file" in log) == (exits.CONFIGURATION, True)


def test_what_a_backfill_needs_ends_it_with_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, log = ended(write(tmp_path), capsys, run_backfill)
    assert (code, "backfill.name" in log) == (exits.CONFIGURATION, True)
