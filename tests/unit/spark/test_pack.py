"""The packed environment: everything that the writer needs but Spark, whole or not at all, and it works anywhere."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path

import pytest

from headrace_core.errors import ConfigError
from headrace_spark.jobs import pack as packing
from headrace_spark.jobs.pack import VERSION, closure, entries, main, pack


def test_the_closure_has_what_is_required_in_turn_and_extras_but_not_spark() -> None:
    found = closure(["headrace-spark"])
    assert found.keys() >= {
        "headrace-spark",
        "headrace-core",
        "headrace-capacity",
        "psycopg",
        "psycopg-binary",
        "numpy",
    }
    assert not found.keys() & {"pyspark", "py4j", "pytest", "matplotlib"}
    less = closure(["headrace-spark"], without=["DeltaLake", "psycopg"])
    assert found.keys() - less.keys() >= {"deltalake", "psycopg", "psycopg-binary"}


def test_a_name_that_is_not_installed_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(tmp_path / "e.tar.gz"), "--with", "no-such-thing"]) == 2
    assert "no-such-thing" in capsys.readouterr().err
    assert main([str(tmp_path / "e.tar")]) == 2, "Spark unpacks it without the permission to execute"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError):
        closure(["no-such-thing"])


def test_every_module_of_ours_and_every_file_of_a_wheel_is_an_entry() -> None:
    names = {name for name, _ in entries(["headrace-spark"])}
    assert {
        "packages/headrace_spark/jobs/writer.py",
        "packages/headrace_core/errors.py",
        f"bin/python{VERSION}",
    } <= names
    wheel = [str(file) for file in metadata.files("msgspec") or [] if file.suffix in (".py", ".so")]
    assert wheel
    assert {f"packages/{file}" for file in wheel} <= names
    assert not [name for name in names if name.startswith("packages/pyspark/") or "/tests/" in name]
    assert not any(".." in Path(name).parts or name.startswith("/") for name in names)


def test_an_archive_works_in_another_folder_with_a_bare_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only `msgspec` and what is ours are packed here; the whole is packed by the test on the cluster."""
    monkeypatch.setattr(packing, "ROOT", "headrace-core")
    archive = tmp_path / "e.tar.gz"
    assert pack(archive, level=1) > 100
    target = tmp_path / "some where" / "else"
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="tar")
    ask = (
        "import sys, ssl, msgspec, headrace_core.errors as e; print(sys.prefix, msgspec.__file__, e.__file__, sys.path)"
    )
    shown = subprocess.run(
        [str(target / "bin" / "python3"), "-c", ask], env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/first"},
        capture_output=True, text=True, check=True, cwd="/",
    ).stdout  # fmt: skip
    assert shown.count(str(target)) >= 4
    assert sys.base_prefix not in shown
    assert shown.index("'/first'") < shown.index("/packages'"), "Spark's own pyspark comes first"
