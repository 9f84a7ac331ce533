"""docs/operations.md names what there is: alerts, metrics, settings, exit codes, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main
import yaml
from click import Command, Context, Group

from headrace import cli, state
from headrace_api import __main__ as api
from headrace_api.settings import Settings as ApiSettings
from headrace_bridge import __main__ as bridge
from headrace_bridge.settings import BridgeSettings
from headrace_spark import exits
from headrace_streams import __main__ as streams
from headrace_streams import verify, worker
from headrace_streams.settings import StreamsSettings
from tests.support import metric_names

PAGE = Path("docs/operations.md").read_text("utf-8")
CODES = PAGE.partition("| exit code |")[2].partition("\n\n")[0]
COMMANDS = re.findall(r"^\.venv/bin/headrace (.+?)(?:\s+#.*)?$", PAGE, flags=re.MULTILINE)


def test_every_alert_is_explained() -> None:
    groups = yaml.safe_load(Path("deploy/prometheus/alerts.yml").read_text("utf-8"))["groups"]
    names = {rule["alert"] for group in groups for rule in group["rules"]}
    assert set(re.findall(r"`(Headrace\w+)`", PAGE)) == names


def test_every_metric_of_stages_bridge_and_writer_is_listed_and_none_that_is_not_exposed() -> None:
    listed = set(re.findall(r"`((?:headrace|process)_[a-z_]+)(?:\{[^`]*)?`", PAGE))
    exposed = metric_names.streams() | metric_names.bridge() | metric_names.writer() | metric_names.api()
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in exposed}
    modules = {"headrace_api", "headrace_bridge", "headrace_streams", "headrace_spark"}
    assert listed - families - modules == set()
    every = metric_names.streams() | metric_names.bridge() | metric_names.writer()
    wanted = {name for name in every if name.startswith("headrace_")}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in wanted} - listed == set()


@pytest.mark.parametrize("kind", [BridgeSettings, StreamsSettings, ApiSettings])
def test_every_variable_is_a_setting(kind: type[StreamsSettings]) -> None:
    prefix = str(kind.model_config["env_prefix"])
    named = set(re.findall(rf"`{prefix}([A-Z_]+)`", PAGE))
    assert named - {field.upper() for field in kind.model_fields} == set()


def meaning(code: int) -> list[str]:
    """The cells of an exit code: bridge, streams and API; writer; command line."""
    row = re.search(rf"^\| {code} \|(.*)\|$", CODES, flags=re.MULTILINE)
    assert row, code
    return [cell.strip() for cell in row[1].split("|")]


def test_the_exit_codes_are_those_of_the_code() -> None:
    assert {bridge.WRONG_SETTING, api.WRONG_SETTING, streams.WRONG_SETTING} == {2}
    assert {bridge.FAILED, api.FAILED, worker.FATAL_EXIT} == {70}
    assert all("setting" in cell for cell in meaning(2)[:2])
    assert meaning(70)[0].startswith("an error while running")
    writer = {
        exits.DONE: "done", exits.FAILURE: "failed", exits.CONFIGURATION: "wrong setting",
        exits.CHECKPOINT: "the checkpoint", exits.DATA_LOSS: "Kafka no longer", exits.CORRUPT_INPUT: "too much",
        exits.SINK_DOWN: "the store was down",
    }  # fmt: skip
    assert all(meaning(code)[1].startswith(words) for code, words in writer.items())
    stack = {cli.FAILED: "an error", cli.RUNS_ALREADY: "a stack runs already", cli.RUNS_NOT: "no stack runs"}
    assert all(meaning(code)[2].startswith(words) for code, words in stack.items())
    assert (verify.EQUAL, verify.DIFFERENT, verify.NOT_COMPARED, state.NOT_COMPARED) == (0, 1, 2, 2)
    assert "0 equal, 1 different, 2 not compared" in PAGE


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_can_be_given_so(line: str) -> None:
    command: Command = typer.main.get_command(cli.app)
    words = line.split()
    while isinstance(command, Group):
        command = command.commands[words.pop(0)]
    command.make_context("headrace", words, parent=Context(command))


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 8


def test_every_file_that_is_named_is_there() -> None:
    for name in re.findall(r"`((?:deploy|docs|schemas)/[\w./-]+)`", PAGE):
        assert Path(name).exists(), name
    for name in re.findall(r"\]\(([\w./-]+)\)", PAGE):
        assert (Path("docs") / name).exists(), name
