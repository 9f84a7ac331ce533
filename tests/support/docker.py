"""Whether a Docker engine runs here, and containers of the images and settings that docker-compose.yml names."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

REPOSITORY = Path(__file__).parents[2]
COMPOSE_FILE = REPOSITORY / "docker-compose.yml"
T = TypeVar("T")


@cache
def engine_problem() -> str:
    """Why there is no usable engine; empty if there is one."""
    try:
        subprocess.run(["docker", "info"], check=True, capture_output=True, timeout=30)
        subprocess.run(["docker", "compose", "version"], check=True, capture_output=True, timeout=30)
    except FileNotFoundError:
        return "docker is not installed"
    except subprocess.TimeoutExpired:
        return "docker does not answer"
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` failed: {error.stderr.decode(errors='replace').strip()[-200:]}"
    return ""


def in_ci() -> bool:
    """Whether a skip is a failure: the variable CI is set, as all CI systems do."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def services() -> dict[str, dict[str, Any]]:
    """The services of docker-compose.yml."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    return found


def eventually(ask: Callable[[], T], good: Callable[[T], bool], seconds: float = 60) -> T:
    """Ask until the answer is good; the last answer is in the failure."""
    deadline = time.monotonic() + seconds
    while not good(answer := ask()):
        assert time.monotonic() < deadline, f"after {seconds} s still {answer!r}"
        time.sleep(0.2)
    return answer
