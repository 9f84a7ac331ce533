"""`python -m headrace_spark.jobs.checkpoint doctor|repair --config FILE.toml` (spark-writer.md 10, cases 4 and 5).

`doctor` lists the entries of `offsets/` and what is wrong with the checkpoint; with `--remove-newest` it removes the
newest entry, if that was never committed. `repair` restores a missing query id from the state store. Exit code 0 if
the checkpoint is whole (then), 3 if not, 2 for a wrong job file or a folder that cannot be used, 1 for anything else.
The job must not run. For a folder on a file system of Hadoop a JVM is started.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headrace_core.errors import ConfigError, HeadraceError
from headrace_spark import checkpoint, exits
from headrace_spark.database import Database
from headrace_spark.folders.port import Folder
from headrace_spark.jobs.folder import checkpoint_folder
from headrace_spark.ledger import Ledger
from headrace_spark.settings import Settings, load


def doctor(settings: Settings, *, remove_newest: bool = False) -> int:
    """List and judge; returns the exit code. Raises `CheckpointRefused` for an entry that must stay."""
    ledger, folder = _ledger(settings), _folder(settings)
    known = ledger.query()
    written = ledger.newest(known[0]) if known else None
    with checkpoint.usable(folder, known):
        return _doctor(folder, known, written, remove_newest)


def _doctor(folder: Folder, known: tuple[str, str] | None, written: int | None, remove_newest: bool) -> int:
    if remove_newest:
        print(f"offsets/{checkpoint.remove_newest(folder, written)} removed")
    for one in checkpoint.examine(folder):
        state = one.problem or ("committed" if one.committed else "not committed")
        written_too = ", in the ledger" if written is not None and one.batch_id <= written else ""
        print(f"offsets/{one.batch_id}: {state}{written_too}")
    found = checkpoint.problems(folder, written)
    try:
        checkpoint.check(known, folder, new_query=False, new_checkpoint=False)
    except exits.CheckpointRefused as error:
        found.append(str(error))
    for problem in found:
        print(problem, file=sys.stderr)
    return exits.CHECKPOINT if found else exits.DONE


def repair(settings: Settings) -> int:
    """Restore `metadata`; returns the exit code. Raises `CheckpointRefused`."""
    ledger, folder = _ledger(settings), _folder(settings)
    known = ledger.query()
    with checkpoint.usable(folder, known):
        restored = checkpoint.restore(folder, known, ledger.newest(known[0]) if known else None)
    print(f"metadata names the query {restored}")
    return exits.DONE


def _folder(settings: Settings) -> Folder:
    """With the job's options, so what its file system needs is there; nothing runs on the cluster."""
    return checkpoint_folder(settings.checkpoint, settings.spark)


def _ledger(settings: Settings) -> Ledger:
    ledger = Ledger(Database(settings.state_dsn), settings.job)
    ledger.prepare()
    return ledger


def main(arguments: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="headrace checkpoint", description="Look after the checkpoint of a job.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("doctor", "list the entries and what is wrong"), ("repair", "restore a missing query id")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--config", type=Path, required=True, help="the job file (TOML)")
        if name == "doctor":
            command.add_argument("--remove-newest", action="store_true", help="remove an entry never committed")
    given = parser.parse_args(arguments)
    try:
        settings = load(given.config)
        return repair(settings) if given.command == "repair" else doctor(settings, remove_newest=given.remove_newest)
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        if isinstance(error, ConfigError):
            return exits.CONFIGURATION
        return exits.CHECKPOINT if isinstance(error, exits.CheckpointRefused) else exits.FAILURE


if __name__ == "__main__":
    sys.exit(main())
