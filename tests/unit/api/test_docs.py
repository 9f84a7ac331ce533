"""docs/status-api.md says what is answered."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest

from headrace_api.examples import MESSAGES, START_MS
from headrace_api.settings import Settings
from tests.support.status_api import fixture

PAGE = (Path(__file__).parents[3] / "docs" / "status-api.md").read_text()
BASE = "http://localhost:8080"
COMMANDS = re.findall(r"^\$ (.*)\n((?:(?!\$ |```).*\n)+)", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command for command, _ in COMMANDS])
async def test_a_command_gives_what_the_page_shows(tmp_path: Path, command: str, output: str) -> None:
    program, silent, *options, url = shlex.split(command)
    assert (program, silent, url.startswith(BASE)) == ("curl", "-s", True)
    given = dict(zip(options[::2], options[1::2], strict=True))
    method = given.pop("-X", "POST" if "-d" in given else "GET")
    headers = [tuple(given.pop("-H").split(": "))] if "-H" in given else []
    body = given.pop("-d", None)
    assert not given
    app = fixture(tmp_path, [(START_MS + at, topic, payload) for at, topic, payload in MESSAGES]).app
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as client:
        answer = await client.request(method, url, headers=headers, content=body)
    assert answer.json() == json.loads(output)


def test_the_page_has_commands_and_the_messages_before_them() -> None:
    assert len(COMMANDS) == 9
    rows = re.findall(r"^\| `(te/\S+)` \| `(.*)` \|$", PAGE, re.MULTILINE)
    assert [(topic, json.loads(payload)) for topic, payload in rows] == [m[1:] for m in MESSAGES]


def test_the_page_names_every_setting() -> None:
    named = set(re.findall(r"HEADRACE_API_(\w+)", PAGE))
    assert named == {name.upper() for name in Settings.model_fields}
