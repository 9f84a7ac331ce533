"""Secrets of the job file come from the environment and from files, whatever characters they have, and never go into
Spark's settings."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from headrace_core.errors import ConfigError
from headrace_spark import kafka_clients, references
from headrace_spark.settings import load
from tests.unit.spark.test_settings import write

SECRET = 'p/w@:?#% "\\x'


def test_a_secret_of_any_characters_arrives_in_a_url_and_in_a_jaas_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB", SECRET)
    (tmp_path / "kafka").write_text(f"{SECRET}\n")
    file = write(tmp_path, state_dsn="postgresql://u:${env:DB}@h:1/d", sink="${env:DSN}")
    monkeypatch.setenv("DSN", "postgresql://h/d")
    jaas = f'x.PlainLoginModule required username="u" password="${{file:{tmp_path}/kafka}}";'
    file.write_text(file.read_text() + f"[kafka_options]\n\"sasl.jaas.config\" = '{jaas}'\n")
    found = load(file)
    assert psycopg.conninfo.conninfo_to_dict(found.state_dsn)["password"] == SECRET
    assert found.sink == "postgresql://h/d"
    assert kafka_clients.client("h:1", found.kafka_options)["sasl.password"] == SECRET


@pytest.mark.parametrize(
    ("value", "says"),
    [("${env:HR_NOT_SET}", "HR_NOT_SET"), ("${file:/no/such/file}", "cannot be read"), ("${env:HR_EMPTY}", "is empty")],
)
def test_what_is_missing_is_named_with_its_field(
    value: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HR_EMPTY", "")
    with pytest.raises(ConfigError, match=says) as caught:
        load(write(tmp_path, state_dsn=value))
    assert caught.value.field == "state_dsn"


def test_a_reference_in_sparks_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB", SECRET)
    file = write(tmp_path)
    file.write_text(file.read_text() + '[spark]\n"spark.executorEnv.PGPASSWORD" = "${env:DB}"\n')
    with pytest.raises(ConfigError, match="PGPASSWORD must hold no secret"):
        load(file)


def test_a_secret_in_clear_in_what_spark_submit_was_told_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB", "Waldkauz")
    file = write(tmp_path, sink="postgresql://u:${env:DB}@h/d")
    with pytest.raises(ConfigError, match=r"executorEnv\.PW holds a secret") as caught:
        load(file, {"spark.executorEnv.PW": "Waldkauz"})
    assert "Waldkauz" not in str(caught.value)


def test_a_refused_value_that_is_a_secret_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB", "Waldkauz")
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, sink="${env:DB}"))
    assert caught.value.field == "sink"
    assert "Waldkauz" not in str(caught.value)


def test_numbers_and_lists_stay_what_they_are() -> None:
    plain = {"capacity": 5, "topics": ["a", "b"], "spark": {"spark.x": "1"}, "available_now": True}
    assert references.resolve(plain) == (plain, frozenset())


def test_what_spark_submit_was_told_is_in_force_under_the_job_files_own(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() + '[spark]\n"spark.a" = "file"\n')
    found = load(file, {"spark.master": "yarn", "spark.a": "told", "spark.b": "told"})
    assert found.master == "yarn"
    assert (found.spark["spark.a"], found.spark["spark.b"]) == ("file", "told")
    with pytest.raises(ConfigError, match="speculation"):
        load(file, {"spark.speculation": "true"})


def test_on_a_cluster_the_staged_path_needs_a_lease_store(tmp_path: Path) -> None:
    dsn = "postgresql://h/d"
    file = write(tmp_path, path="staged", sink=dsn, state_dsn=dsn)
    assert load(file).path == "staged"
    with pytest.raises(ConfigError, match="lease_store"):
        load(file, {"spark.master": "spark://h:7077"})
