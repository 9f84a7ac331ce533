"""The examples of README.md do what it says, against a running stack."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.endpoints import Endpoints
from headrace.stack import LocalStack
from tests.support.streams_worker import REPOSITORY

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(300)]

README = (REPOSITORY / "README.md").read_text()


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A stack with the timeline of the examples, in which the demo's telemetry has been published."""
    (timelines,) = re.findall(r"HEADRACE_TIMELINES='(.*?)'", README)
    home = tmp_path_factory.mktemp("readme") / ".headrace"
    with pytest.MonkeyPatch.context() as patch, LocalStack(home, without=("spark",)) as stack:
        patch.setenv("HEADRACE_STREAMS_TIMELINES", timelines)
        found = stack.start()
        mqtt = f"{found.mqtt_host}:{found.mqtt_port}"
        run("-m", "headrace", "publish", "--mqtt", mqtt, "--seconds", "5", "--protocol", found.mqtt_protocol)
        yield found


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(script: str) -> str:
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=600, check=True)
    return done.stdout


def block(language: str, heading: str) -> str:
    """The example in this language below this heading."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", README, re.DOTALL | re.MULTILINE)
    (found,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert isinstance(found, str)
    return found


def test_the_consumer_prints_each_batch_once(endpoints: Endpoints) -> None:
    program = block("python", "Consume the topics")
    assert "127.0.0.1:9092" in program
    lines: list[str] = []
    for _ in range(3):  # it ends when nothing came for 10 s, which may be before a slow machine lets it have anything
        lines += run("-c", program.replace("127.0.0.1:9092", endpoints.kafka)).splitlines()
        if len(lines) > 50:
            break
    assert len(lines) > 50
    assert len(lines) == len(set(lines))
    assert all(re.fullmatch(r"te/\S+ \d+ \[.+\]", line) for line in lines)


def test_the_api_answers_each_call(endpoints: Endpoints) -> None:
    example = block("sh", "Ask who is registered")
    calls = re.findall(r"^curl -s '(http://127\.0\.0\.1:8080)(\S+)'$", example, re.MULTILINE)
    answers = {}
    for address, path in calls:
        done = subprocess.run(["curl", "-s", endpoints.api_url + path], capture_output=True, timeout=30, check=True)
        assert address == "http://127.0.0.1:8080"
        answers[path.split("?")[0]] = json.loads(done.stdout)
    assert len(answers) == len(example.splitlines()) == 4
    assert {entity["@type"] for entity in answers["/te/v1/entities"]} == {"child-device"}
    assert answers["/te/v1/entities/device/main"]["@id"] == "main-dev"
    assert answers["/v1/status"]["ready"] is True
    states = {one["state"]: one for one in answers["/te/v1/registrations"]["items"]}
    for shown in json.loads(block("json", "Ask who is registered"))["items"]:
        assert states[shown["state"]].keys() == shown.keys()
    assert states["pending"]["cached"]["telemetry"] == 3
    assert states["unknown"]["last_error"]["reason"] == "id_in_use"


def test_a_message_comes_when_it_is_due(endpoints: Endpoints) -> None:
    example = block("sh", "Delay, schedule, lease").replace("http://127.0.0.1:8080", endpoints.api_url)
    assert example.count("curl -s -X POST") == 2
    ask, poll = (f"curl {call}" for call in example.split("curl ")[1:])
    created = json.loads(shell(ask))
    while not (answer := shell(poll)):  # it waits for 10 s, and a slow machine may be later
        pass
    leased = json.loads(answer)
    assert (created["id"], created["status"]) == ("invoice/1", "waiting")
    (lease,) = leased["leases"]
    assert (lease["id"], lease["due_at"], lease["body"]) == ("invoice/1", created["timestamp"], "...")


def test_the_map_names_folders_and_pages_that_exist() -> None:
    folders = re.findall(r"^\| `(\w+)/` \|", README, re.MULTILINE)
    pages = re.findall(r"\]\((\S+?)\)", README)
    assert len(folders) >= 7
    names = [*folders, *(page.partition("#")[0] for page in pages)]
    assert [name for name in names if not (REPOSITORY / name).exists()] == []
    for page, _, anchor in (page.partition("#") for page in pages if "#" in page):
        headings = re.findall(r"^#+ (.*)$", (REPOSITORY / page).read_text(), re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
