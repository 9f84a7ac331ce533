"""Is this checkpoint the one the job wrote with, and is it whole? (spark-writer.md 10, cases 4 to 6)

Theory: Spark's checkpoint holds the query id (`metadata`), what each micro-batch read (`offsets/`, one file for each
batch id, the oldest are removed) and which of them ended (`commits/`). The ledger holds what was written, by query id
and batch id. A start is safe if the query id is the job's, `offsets/` has no hole and can be read, and goes as far as
the ledger. Else a batch id would be used for other records, and the ledger would skip them.

After a start that finds all committed, Spark runs nothing before a new record comes: only a micro-batch of the same
start can ask for another one without data (`lastExecution` in MicroBatchExecution.constructNextBatch). Rows that wait
in the state store would wait for that record. So `awaken` writes down, as Spark does, a first micro-batch without data.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec

from headrace_core.errors import ConfigError
from headrace_spark.exits import CheckpointRefused


class Entry(msgspec.Struct, frozen=True):
    """A batch id in `offsets/`. `problem` is empty if the file can be read; `committed`: Spark's commit log has it."""

    batch_id: int
    problem: str
    committed: bool


def query_id(checkpoint: Path) -> str | None:
    """The query id in the checkpoint's `metadata`, None if the file is missing. Raises `CheckpointRefused` if it cannot
    be read."""
    file = checkpoint / "metadata"
    if not file.exists():
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointRefused(
            f"{file} cannot be read ({error}): restore it with `headrace checkpoint repair`, or remove it and start"
            " with --new-query"
        ) from None


def probe(checkpoint: Path) -> None:
    """Test that the folder can be written durably, that a file is created by one process alone, that renaming replaces,
    and that what was written is there (spark-writer.md 12). Raises `ConfigError`."""
    own = f".headrace-probe-{os.getpid()}-{time.time_ns()}"
    one, two = checkpoint / own, checkpoint / f"{own}.new"
    try:
        checkpoint.mkdir(parents=True, exist_ok=True)
        try:
            _probe(checkpoint, one, two)
        finally:
            for file in (one, two):
                file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError("checkpoint", f"{checkpoint} cannot be used: {error}") from None


def _probe(folder: Path, one: Path, two: Path) -> None:
    _create(one, b"1")
    try:
        _create(one, b"2")
    except FileExistsError:
        _create(two, b"3")
    else:
        raise ConfigError("checkpoint", f"{folder}: a file can be created twice, so it must not be used")
    two.replace(one)
    _durable(folder)
    if two.exists() or one.read_bytes() != b"3":
        raise ConfigError("checkpoint", f"{folder}: renaming does not replace a file at once, so it must not be used")


def _create(file: Path, content: bytes) -> None:
    """Exclusively and durably, as Spark's commit files must be."""
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(out, content)
        os.fsync(out)
    finally:
        os.close(out)


def _appear(file: Path, content: bytes) -> None:
    """Durably, whole at once, and only if it is not there. Without hard links a crash may leave it cut: the newest
    entry and not committed, so `headrace checkpoint doctor` may remove it."""
    scratch = file.with_name(f".headrace-{os.getpid()}-{time.time_ns()}")
    try:
        _create(scratch, content)
        os.link(scratch, file)
    except FileExistsError:
        raise
    except OSError:
        _create(file, content)
    finally:
        scratch.unlink(missing_ok=True)


def _durable(folder: Path) -> None:
    """The folder's names, too."""
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)


def check(known: tuple[str, str] | None, checkpoint: Path, *, new_query: bool, new_checkpoint: bool) -> None:
    """Compare what the state store knows of the job, (query id, checkpoint), with the folder. Raises
    `CheckpointRefused`; nothing was written then."""
    if known is None:
        return
    wrote, folder = known
    if Path(folder) != checkpoint and not new_checkpoint:
        raise CheckpointRefused(
            f"this job wrote with the checkpoint {folder}, not {checkpoint}: go back to it, or accept with"
            " --new-checkpoint that batch ids start at 0 again"
        )
    found = query_id(checkpoint)
    if found != wrote and not (new_query or new_checkpoint):
        state = "is missing" if found is None else f"names the query {found}"
        raise CheckpointRefused(
            f"{checkpoint}/metadata {state}, but this job wrote as the query {wrote}: restore it with"
            " `headrace checkpoint repair`, or accept a new query with --new-query"
        )


def whole(checkpoint: Path, written: int | None) -> None:
    """Check that `offsets/` can be read, has no hole, and goes as far as the ledger, whose newest batch id of this
    query is `written`. Raises `CheckpointRefused`."""
    found = problems(checkpoint, written)
    if found:
        raise CheckpointRefused(
            f"{checkpoint}: {'; '.join(found)}: `headrace checkpoint doctor` lists the files; restore the folder, or"
            " start anew with another one and --new-checkpoint"
        )


def problems(checkpoint: Path, written: int | None) -> list[str]:
    """What is wrong, in words; empty if nothing is."""
    entries = examine(checkpoint)
    found = [f"offsets/{one.batch_id} {one.problem}" for one in entries if one.problem]
    newest = entries[-1].batch_id if entries else -1
    ended = max(_numbered(checkpoint / "commits"), default=-1)
    if ended > newest:
        found.append(f"commits/ goes to {ended}, but offsets/ to {newest}")
    if written is not None and written > newest:
        found.append(f"the ledger has micro-batch {written}, but offsets/ goes to {newest}")
    return found


def examine(checkpoint: Path) -> list[Entry]:
    """Every batch id from the oldest to the newest in `offsets/`."""
    files, ended = _numbered(checkpoint / "offsets"), _numbered(checkpoint / "commits")
    if not files:
        return []
    return [
        Entry(number, _problem(files[number]) if number in files else "is missing", number in ended)
        for number in range(min(files), max(files) + 1)
    ]


def restore(checkpoint: Path, known: tuple[str, str] | None, written: int | None) -> str:
    """Write the query id that the state store knows into `metadata`; returns it. Raises `CheckpointRefused` if the
    folder is not the job's, has another query id, or lacks what the ledger has."""
    if known is None:
        raise CheckpointRefused("the state store does not know this job: there is nothing to restore")
    wrote, folder = known
    if Path(folder) != checkpoint:
        raise CheckpointRefused(f"this job wrote with the checkpoint {folder}, not {checkpoint}")
    try:
        found = query_id(checkpoint)
    except CheckpointRefused:
        found = None
    if found not in (None, wrote):
        raise CheckpointRefused(f"{checkpoint}/metadata names the query {found}; it is not missing, so it stays")
    whole(checkpoint, written)
    if found is None:
        (checkpoint / ".metadata.crc").unlink(missing_ok=True)
        scratch = checkpoint / ".metadata.restored"
        scratch.write_text(json.dumps({"id": wrote}), encoding="utf-8")
        os.replace(scratch, checkpoint / "metadata")
    return wrote


def remove_newest(checkpoint: Path, written: int | None) -> int:
    """Remove the newest entry of `offsets/`, if it was never committed; returns its batch id. Raises
    `CheckpointRefused`."""
    entries = examine(checkpoint)
    if not entries:
        raise CheckpointRefused(f"{checkpoint}/offsets has no entry")
    newest = entries[-1]
    if newest.committed or (written is not None and written >= newest.batch_id):
        where = "Spark's commit log" if newest.committed else "the ledger"
        raise CheckpointRefused(f"offsets/{newest.batch_id} was committed: {where} has it, so it stays")
    folder = checkpoint / "offsets"
    (folder / str(newest.batch_id)).unlink()
    (folder / f".{newest.batch_id}.crc").unlink(missing_ok=True)
    return newest.batch_id


def awaken(checkpoint: Path, now_ms: int) -> int | None:
    """If every micro-batch is committed, write the next one into `offsets/`, which reads nothing and whose time is
    `now_ms`, or a millisecond after the one before if that is later; returns its batch id. None if there is nothing to
    go on from, if a micro-batch is left to be repeated, or if another driver was first."""
    entries = examine(checkpoint)
    if not entries or not entries[-1].committed:
        return None
    folder, number = checkpoint / "offsets", entries[-1].batch_id + 1
    version, described, *offsets = (folder / str(number - 1)).read_text(encoding="utf-8").splitlines()
    metadata = json.loads(described)
    metadata["batchTimestampMs"] = max(now_ms, metadata.get("batchTimestampMs", 0) + 1)
    content = "\n".join([version, json.dumps(metadata, separators=(",", ":")), *offsets]).encode()
    try:
        _appear(folder / str(number), content)
    except FileExistsError:
        return None
    _durable(folder)
    return number


def _numbered(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    return {int(file.name): file for file in folder.iterdir() if file.name.isdigit()}


def _problem(file: Path) -> str:
    """An entry is a line with the version, one of metadata, and one for each source; the last three are JSON or `-`."""
    raw = file.read_bytes()
    if not raw:
        return "is empty"
    lines = raw.decode("utf-8", "replace").splitlines()
    if len(lines) < 3 or not lines[0].startswith("v"):
        return "is cut"
    try:
        for line in lines[1:]:
            if line != "-":
                json.loads(line)
    except ValueError:
        return "is cut"
    return ""
