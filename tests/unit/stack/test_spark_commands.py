"""The Spark writer's commands are processes with the exit codes of the writer."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace import cli


@pytest.mark.parametrize("command", ["audit", "backfill"])
def test_a_job_file_that_is_not_there_is_a_configuration_error(command: str, tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli.app, [command, "--config", str(tmp_path / "none.toml")])
    assert ran.exit_code == 2
