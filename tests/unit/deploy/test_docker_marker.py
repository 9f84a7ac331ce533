"""Without a Docker engine its tests are skipped and the summary says so; in CI they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.docker import REPOSITORY


def run_without_docker(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "CI"} | {"PATH": str(tmp_path)} | variables
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/e2e/test_compose.py"]
    return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=200)


def test_without_an_engine_the_tests_are_skipped_loudly(tmp_path: Path) -> None:
    ran = run_without_docker(tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert "NOT TESTED" in ran.stdout
    assert "tests with containers were skipped: docker is not installed" in ran.stdout


def test_in_ci_they_fail(tmp_path: Path) -> None:
    ran = run_without_docker(tmp_path, CI="true")
    assert ran.returncode == 1, ran.stdout
    assert "needs a Docker engine: docker is not installed" in ran.stdout
