"""A wrong setting ends the start with code 2 and one line that names the field."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from headrace_core.errors import ConfigError
from headrace_streams.__main__ import in_one_line
from headrace_streams.settings import StreamsSettings
from headrace_streams.stages import load


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("HTTP_PORT", "70000", "http_port: "),
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


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"roots": {"te": 1}}, "roots.te: "),
        ({"kafka": ""}, "kafka: "),
        ({"kafka": "a:1, /b"}, "kafka: "),
        ({"prefix": "a b"}, "prefix: "),
        ({"fault": "soon"}, "fault: "),
        ({"partitions": 0, "stall_s": 0}, "partitions: Input should be greater than or equal to 1; stall_s: "),
    ],
)
def test_a_wrong_value_is_one_line_that_begins_with_its_field(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError) as raised:
        StreamsSettings(**settings)
    told = in_one_line(raised.value)
    assert told.startswith(line)
    assert "\n" not in told


@pytest.mark.parametrize("kafka", ["kafka", "a:1", "a:1,b:2 , c:3", "[::1]:9092"])
def test_addresses_that_may_be_given(kafka: str) -> None:
    assert StreamsSettings(kafka=kafka).kafka == kafka


@pytest.mark.parametrize("stages", ["registration,registration", "batching, registration, batching"])
def test_a_stage_that_is_named_twice_ends_the_start_instead_of_one_taking_the_others_place(stages: str) -> None:
    with pytest.raises(ConfigError, match="stages: two with the stage"):
        load(StreamsSettings(stages=stages))


def test_two_stages_cannot_share_an_input() -> None:
    with pytest.raises(ConfigError, match=r"stages: .* reads raw, which registration reads"):
        load(StreamsSettings(stages="registration,tests.support.counting_stage:CountingStage"))


@pytest.mark.parametrize("field", ["pending_ttl", "status_retention"])
@pytest.mark.parametrize("value", [0, 10**17 + 1])
def test_a_time_that_no_document_could_hold_is_a_wrong_setting_and_no_crash_later(field: str, value: int) -> None:
    assert load(StreamsSettings(registration={field: 10**17}))
    with pytest.raises(ConfigError, match=f"registration: {field}: must be 1 to"):
        load(StreamsSettings(registration={field: value}))
