"""A wrong setting ends the start with code 2 and one line that names the field."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("HTTP_PORT", "70000", "http_port"),
        ("ROOTS", "{", "roots"),
        ("STAGES", " , ", "stages"),
        ("STAGES", "nobody", "stages"),
        ("STAGES", "no.such.module:Stage", "stages"),
        ("STAGES", "json:NoSuchClass", "stages"),
        ("BATCHING", '{"windw": 1}', "batching.windw"),
        ("BATCHING", '{"timeout": 0}', "timeout"),
        ("REGISTRATION", '{"pending_ttl": "1h"}', "registration"),
        (
            "TIMELINES",
            '{"r": {"buffer": {"source": "a", "target": "b"}}}',
            "timelines.r.buffer.delay_ms: must be given",
        ),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str, field: str) -> None:
    env = {**os.environ, f"HEADRACE_STREAMS_{name}": value}
    ran = subprocess.run(
        [sys.executable, "-m", "headrace_streams"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert (ran.returncode, [line["event"] for line in lines]) == (2, ["wrong setting"])
    assert field in lines[0]["error"]
