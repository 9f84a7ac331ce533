"""Commands on a folder where no stack runs, or where another process holds the lock."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace import cli
from headrace.stack import AlreadyRunning, Files, LocalStack, acquire, holder
from headrace_core.errors import HeadraceError

runner = CliRunner()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Files]:
    """A folder whose lock this process has."""
    files = Files(tmp_path / "home")
    lock = acquire(files)
    yield files
    lock.close()


def test_the_holder_of_the_lock_is_known_as_long_as_it_has_it(tmp_path: Path) -> None:
    files = Files(tmp_path / "home")
    assert holder(files) is None
    lock = acquire(files)
    assert holder(files) == os.getpid()
    lock.close()
    assert files.lock.read_text() == str(os.getpid())
    assert holder(files) is None


def test_a_second_stack_in_one_folder_is_refused_by_name(held: Files) -> None:
    with pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"):
        LocalStack(held.home).start()
    assert held.lock.read_text() == str(os.getpid())


def test_a_refused_stack_does_not_take_the_lock_or_the_record_of_the_other(held: Files) -> None:
    held.endpoints.write_text("{}")
    with pytest.raises(AlreadyRunning), LocalStack(held.home) as stack:
        stack.start()
    assert held.endpoints.exists()
    assert holder(held) == os.getpid()


@pytest.mark.parametrize("line", [["up"], ["up", "--detach"], ["reset"]])
def test_up_and_reset_are_refused_while_a_stack_runs(held: Files, line: list[str]) -> None:
    ran = runner.invoke(cli.app, [*line, "--home", str(held.home)])
    assert isinstance(ran.exception, AlreadyRunning)
    assert held.home.exists()


def test_refusal_and_error_have_their_exit_codes_and_one_line(
    held: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["headrace", "reset", "--home", str(held.home)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == cli.RUNS_ALREADY
    assert capsys.readouterr().err.count("\n") == 1


def test_status_says_that_no_stack_runs_and_so_does_its_exit_code(tmp_path: Path) -> None:
    ran = runner.invoke(cli.app, ["status", "--json", "--home", str(tmp_path)])
    assert ran.exit_code == cli.RUNS_NOT
    assert json.loads(ran.stdout) == {"home": str(tmp_path), "running": False, "pid": None, "services": []}


def test_down_without_a_stack_is_no_error(tmp_path: Path) -> None:
    assert runner.invoke(cli.app, ["down", "--home", str(tmp_path)]).exit_code == 0


def test_reset_removes_the_state(tmp_path: Path) -> None:
    files = Files(tmp_path / "home")
    acquire(files).close()
    (files.home / "kafka").mkdir()
    assert runner.invoke(cli.app, ["reset", "--home", str(files.home)]).exit_code == 0
    assert not files.home.exists()
    assert runner.invoke(cli.app, ["reset", "--home", str(files.home)]).exit_code == 0


def test_reset_does_not_touch_a_folder_that_is_not_headraces(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    ran = runner.invoke(cli.app, ["reset", "--home", str(tmp_path)])
    assert isinstance(ran.exception, HeadraceError)
    assert (tmp_path / "letters").exists()
