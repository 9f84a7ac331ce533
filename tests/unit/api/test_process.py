"""The process: exit codes, and settings that are wrong by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def run(tmp_path: Path, **settings: str) -> tuple[int, str]:
    """Exit code and log of a process that is expected to end by itself."""
    values = {"DATA_DIR": str(tmp_path / "api"), "KAFKA": "127.0.0.1:1", "HTTP_PORT": "0"} | settings
    env = {**os.environ, **{f"HEADRACE_API_{name}": value for name, value in values.items()}}
    done = subprocess.run([sys.executable, "-m", "headrace_api"], env=env, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("REGISTRATION", '{"pending": 1}', "registration.pending"),
        ("REGISTRATION", '{"pending_ttl": 0}', "pending_ttl"),
        ("ROOTS", '{"a": "x", "b": "x"}', "external ids of main devices must differ"),
        ("HTTP_PORT", "70000", "http_port"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, name: str, value: str, words: str) -> None:
    code, log = run(tmp_path, **{name: value})
    assert code == 2
    assert words in log


def test_a_port_that_is_taken_is_a_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, log = run(tmp_path, HTTP_PORT=str(taken.getsockname()[1]))
    assert code == 70
    assert "in use" in log
