"""A variable that no setting reads is named, with the nearest one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from headrace_core.misspelt import unread

SETTINGS = ["kafka", "prefix", "http_port"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("HR_KAFAK", "HR_KAFKA"), ("HR_HTTPPORT", "HR_HTTP_PORT"), ("hr_prefx", "HR_PREFIX"), ("HR_", ""),
        ("HR_ZZZZ", ""),
    ],
)  # fmt: skip
def test_what_no_setting_reads_is_named_with_the_nearest(name: str, nearest: str) -> None:
    assert unread([name, "HR_KAFKA", "hr_http_port", "PATH", "OTHER_KAFAK"], "HR_", SETTINGS) == [(name, nearest)]


@pytest.mark.parametrize(
    ("module", "prefix", "wrong"),
    [
        ("headrace_streams", "HEADRACE_STREAMS_", ("HTTP_PORT", "70000")),
        ("headrace_bridge", "HEADRACE_BRIDGE_", ("MQTT_PORT", "70000")),
        ("headrace_api", "HEADRACE_API_", ("HTTP_PORT", "70000")),
    ],
)
def test_a_service_says_so_at_start_and_goes_on(module: str, prefix: str, wrong: tuple[str, str]) -> None:
    """It goes on as far as the value that is wrong on purpose, so that it ends soon."""
    env = {**os.environ, prefix + "KAFAK": "a:1", prefix + "CONFIGG": "x", prefix + wrong[0]: wrong[1]}
    ran = subprocess.run([sys.executable, "-m", module], env=env, capture_output=True, timeout=120, check=False)
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    told = [(line["level"], line["variable"], line["nearest"]) for line in lines if line["event"] == "no such setting"]
    config = prefix + "CONFIG" if module == "headrace_bridge" else ""
    assert told == [("warning", prefix + "CONFIGG", config), ("warning", prefix + "KAFAK", prefix + "KAFKA")]
    assert (ran.returncode, lines[-1]["event"]) == (2, "wrong setting")
