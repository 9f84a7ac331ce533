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
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Final

import msgspec

from headrace_core.errors import ConfigError, HeadraceError
from headrace_spark.exits import CheckpointRefused
from headrace_spark.folders.port import Away, Folder

_RACES: Final = 3
"""Of two that make the same file; each has its winner in some milliseconds."""


class Entry(msgspec.Struct, frozen=True):
    """A batch id in `offsets/`. `problem` is empty if the file can be read; `committed`: Spark's commit log has it."""

    batch_id: int
    problem: str
    committed: bool


class CheckpointAway(HeadraceError):
    """The file system of a checkpoint that this job has written with does not answer. It may at the next start."""

    code = "checkpoint_away"
    retry = True


@contextmanager
def usable(checkpoint: Folder, known: tuple[str, str] | None) -> Iterator[None]:
    """What the file system refuses, as a refusal of the start: raises `ConfigError`, or `CheckpointAway` if it does not
    answer and this job wrote there before, as `known` of the state store says, so that the name is right."""
    try:
        yield
    except OSError as error:
        if isinstance(error, Away) and known is not None and known[1] == str(checkpoint):
            raise CheckpointAway(f"the checkpoint {checkpoint} cannot be reached: {error}") from None
        raise ConfigError("checkpoint", f"{checkpoint} cannot be used: {error}") from None


def query_id(checkpoint: Folder) -> str | None:
    """The query id in the checkpoint's `metadata`, None if the file is missing. Raises `CheckpointRefused` if it cannot
    be read."""
    content = checkpoint.read("metadata")
    if content is None:
        return None
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointRefused(
            f"{checkpoint}/metadata cannot be read ({error}): restore it with `headrace checkpoint repair`, or remove"
            " it and start with --new-query"
        ) from None


def probe(checkpoint: Folder) -> None:
    """Test that the folder can be written durably, that a file is created by one process alone, that renaming replaces
    or refuses, and that what was written is there (spark-writer.md 12). Raises `ConfigError`; OSError as the folder."""
    own = f".headrace-probe-{uuid.uuid4().hex}"
    checkpoint.make()
    try:
        _probe(checkpoint, own)
    finally:
        for name in checkpoint.names(""):
            if own in name:
                checkpoint.remove(name)


def _probe(folder: Folder, own: str) -> None:
    if _both_finish(folder, own):
        raise ConfigError("checkpoint", f"{folder}: a file can be created twice, so it must not be used")
    folder.replace(own, b"3")
    if [name for name in folder.names("") if own in name] != [own] or folder.read(own) != b"3":
        raise ConfigError("checkpoint", f"{folder}: renaming does not replace a file at once, so it must not be used")
    if any(_winners(folder, f"{own}-{race}") != 1 for race in range(_RACES)) or _appears(folder, own):
        raise ConfigError("checkpoint", f"{folder}: renaming replaces a file that is there, so it must not be used")


def _both_finish(folder: Folder, file: str) -> bool:
    """Whether two can make a file that both have begun; some object stores look only at the beginning."""
    one = folder.begin(file)
    try:
        two = folder.begin(file)
    except FileExistsError:
        one.finish(b"1")
        return False
    one.finish(b"1")
    try:
        two.finish(b"2")
    except FileExistsError:
        return False
    return True


def _winners(folder: Folder, file: str) -> int:
    """How many of two that make a file at one time did make it."""
    start = Barrier(2)

    def appears(_: int) -> bool:
        start.wait()
        return _appears(folder, file)

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(appears, range(2)))


def _appears(folder: Folder, file: str) -> bool:
    try:
        folder.appear(file, b"4")
    except FileExistsError:
        return False
    return True


def check(known: tuple[str, str] | None, checkpoint: Folder, *, new_query: bool, new_checkpoint: bool) -> None:
    """Compare what the state store knows of the job, (query id, checkpoint), with the folder. Raises
    `CheckpointRefused`; nothing was written then."""
    if known is None:
        return
    wrote, folder = known
    if folder != str(checkpoint) and not new_checkpoint:
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


def whole(checkpoint: Folder, written: int | None) -> None:
    """Check that `offsets/` can be read, has no hole, and goes as far as the ledger, whose newest batch id of this
    query is `written`. Raises `CheckpointRefused`."""
    found = problems(checkpoint, written)
    if found:
        raise CheckpointRefused(
            f"{checkpoint}: {'; '.join(found)}: `headrace checkpoint doctor` lists the files; restore the folder, or"
            " start anew with another one and --new-checkpoint"
        )


def problems(checkpoint: Folder, written: int | None) -> list[str]:
    """What is wrong, in words; empty if nothing is."""
    entries = examine(checkpoint)
    found = [f"offsets/{one.batch_id} {one.problem}" for one in entries if one.problem]
    newest = entries[-1].batch_id if entries else -1
    ended = max(_numbers(checkpoint, "commits"), default=-1)
    if ended > newest:
        found.append(f"commits/ goes to {ended}, but offsets/ to {newest}")
    if written is not None and written > newest:
        found.append(f"the ledger has micro-batch {written}, but offsets/ goes to {newest}")
    return found


def examine(checkpoint: Folder) -> list[Entry]:
    """Every batch id from the oldest to the newest in `offsets/`."""
    read = {number: checkpoint.read(f"offsets/{number}") for number in _numbers(checkpoint, "offsets")}
    there = [number for number, content in read.items() if content is not None]  # a driver that runs removes the oldest
    if not there:
        return []
    ended = _numbers(checkpoint, "commits")
    return [Entry(number, _problem(read.get(number)), number in ended) for number in range(min(there), max(there) + 1)]


def restore(checkpoint: Folder, known: tuple[str, str] | None, written: int | None) -> str:
    """Write the query id that the state store knows into `metadata`; returns it. Raises `CheckpointRefused` if the
    folder is not the job's, has another query id, or lacks what the ledger has."""
    if known is None:
        raise CheckpointRefused("the state store does not know this job: there is nothing to restore")
    wrote, folder = known
    if folder != str(checkpoint):
        raise CheckpointRefused(f"this job wrote with the checkpoint {folder}, not {checkpoint}")
    try:
        found = query_id(checkpoint)
    except CheckpointRefused:
        found = None
    if found not in (None, wrote):
        raise CheckpointRefused(f"{checkpoint}/metadata names the query {found}; it is not missing, so it stays")
    whole(checkpoint, written)
    if found is None:
        checkpoint.remove(".metadata.crc")
        checkpoint.replace("metadata", json.dumps({"id": wrote}).encode())
    return wrote


def remove_newest(checkpoint: Folder, written: int | None) -> int:
    """Remove the newest entry of `offsets/`, if it was never committed; returns its batch id. Raises
    `CheckpointRefused`."""
    entries = examine(checkpoint)
    if not entries:
        raise CheckpointRefused(f"{checkpoint}/offsets has no entry")
    newest = entries[-1]
    if newest.committed or (written is not None and written >= newest.batch_id):
        where = "Spark's commit log" if newest.committed else "the ledger"
        raise CheckpointRefused(f"offsets/{newest.batch_id} was committed: {where} has it, so it stays")
    checkpoint.remove(f"offsets/{newest.batch_id}")
    checkpoint.remove(f"offsets/.{newest.batch_id}.crc")
    return newest.batch_id


def awaken(checkpoint: Folder, now_ms: int) -> int | None:
    """If every micro-batch is committed, write the next one into `offsets/`, which reads nothing and whose time is
    `now_ms`, or a millisecond after the one before if that is later; returns its batch id. None if there is nothing to
    go on from, if a micro-batch is left to be repeated, or if another driver was first."""
    entries = examine(checkpoint)
    if not entries or not entries[-1].committed:
        return None
    last = entries[-1].batch_id
    version, described, *offsets = offsets_of(checkpoint, last)
    metadata = json.loads(described)
    metadata["batchTimestampMs"] = max(now_ms, metadata.get("batchTimestampMs", 0) + 1)
    content = "\n".join([version, json.dumps(metadata, separators=(",", ":")), *offsets]).encode()
    try:
        checkpoint.appear(f"offsets/{last + 1}", content)
    except FileExistsError:
        return None
    return last + 1


def offsets_of(checkpoint: Folder, batch_id: int) -> list[str]:
    """The lines of an entry of `offsets/`: version, metadata, and one for each source."""
    content = checkpoint.read(f"offsets/{batch_id}")
    if content is None:
        raise CheckpointRefused(f"{checkpoint}/offsets/{batch_id} was removed meanwhile: does another driver run?")
    return content.decode().splitlines()


def _numbers(checkpoint: Folder, folder: str) -> set[int]:
    return {int(name) for name in checkpoint.names(folder) if name.isascii() and name.isdigit()}


def _problem(content: bytes | None) -> str:
    """An entry is a line with the version, one of metadata, and one for each source; the last three are JSON or `-`."""
    if content is None:
        return "is missing"
    if not content:
        return "is empty"
    lines = content.decode("utf-8", "replace").splitlines()
    if len(lines) < 3 or not lines[0].startswith("v"):
        return "is cut"
    try:
        for line in lines[1:]:
            if line != "-":
                json.loads(line)
    except ValueError:
        return "is cut"
    return ""
