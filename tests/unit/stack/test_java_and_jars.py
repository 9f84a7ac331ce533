"""What the stack brings from outside: a Java runtime that fits, and jars that are the ones that were fetched."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace import jars, java
from headrace.jars import JarSet, JarsMissing
from headrace.java import NoJava


def runtime(folder: Path, version: str) -> Path:
    """A home with a program that says it is Java of this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)


@pytest.mark.parametrize("version", ["17.0.9", "21.0.1", "25"])
def test_a_runtime_that_fits_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    program = runtime(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.java() == str(program)


def test_one_that_does_not_fit_is_passed_over_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, good = runtime(tmp_path / "old", "11.0.2"), runtime(tmp_path / "good", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(NoJava, match=f"{old} is 11.*install one"):
        java.java()
    monkeypatch.setattr(java, "PLACES", (str(tmp_path / "*" / "bin" / "java"),))
    assert java.java() == str(good)


def test_one_that_does_not_answer_is_not_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime(tmp_path, "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    def hangs(command: Any, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 30)

    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(NoJava, match="is not usable"):
        java.java()


def test_jars_are_fetched_once_and_again_when_they_are_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fetched: list[str] = []

    def download(wanted: JarSet, folder: Path) -> None:
        fetched.append(wanted.name)
        folder.mkdir(exist_ok=True)
        (folder / "kafka_2.13-4.4.0.jar").write_bytes(b"jar")
        (folder / "complete").write_text(jars._sums(folder))

    monkeypatch.setattr(jars, "_download", download)
    folder = jars.kafka_jars()
    assert folder.is_relative_to(tmp_path)
    assert jars.kafka_jars() == folder
    assert fetched == ["kafka"]
    (folder / "kafka_2.13-4.4.0.jar").write_bytes(b"something else")
    jars.kafka_jars()
    (folder / "more.jar").write_bytes(b"nobody fetched this")
    jars.kafka_jars()
    assert fetched == ["kafka"] * 3


def test_jars_that_cannot_be_fetched_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runtime(tmp_path / "home", "21").write_text("#!/bin/sh\necho 'version \"21\"' >&2\n[ $# = 1 ]\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(JarsMissing, match=r"the jars of kafka 4\.4\.0 could not be fetched: .*version"):
        jars.kafka_jars()
    assert not list((tmp_path / "headrace").glob("kafka-*"))
