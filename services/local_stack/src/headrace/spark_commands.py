"""Commands of the Spark writer, run as processes of their own: this package does not import the job's.

`headrace checkpoint doctor|repair --config FILE`, `headrace writer init|pack FILE`, `headrace audit --config FILE` and
`headrace backfill --config FILE`, with the exit codes of spark-writer.md 10: 0 done, 1 failure, 2 configuration,
3 checkpoint, 4 data loss. For `audit` a difference is a failure.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import typer

_AS_GIVEN = {"allow_extra_args": True, "ignore_unknown_options": True}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for name, text in (
        ("checkpoint", "Look after the checkpoint of a Spark job: doctor | repair, --config FILE."),
        ("writer", "The Spark writer: init FILE (a job file) | pack FILE (its environment)."),
        ("audit", "Recompute batches by the batcher's engine and compare, --config FILE."),
        ("backfill", "Write a fixed range of the topics again, --config FILE."),
    ):
        app.command(name, help=text, context_settings=_AS_GIVEN, add_help_option=False)(_process(name))


def _process(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        module, arguments = _MODULES[name], context.args
        if name == "writer" and arguments[:1] == ["pack"]:
            module, *arguments = arguments
        command = [sys.executable, "-m", f"headrace_spark.jobs.{module}", *arguments]
        raise typer.Exit(subprocess.run(command, check=False).returncode)

    return run


_MODULES = {"checkpoint": "checkpoint", "writer": "init", "audit": "audit", "backfill": "backfill"}
