"""Is this checkpoint the one the job wrote with? (spark-writer.md 10, cases 4 and 6)"""

from __future__ import annotations

import json
from pathlib import Path

from headrace_spark.exits import CheckpointRefused


def query_id(checkpoint: Path) -> str | None:
    """The query id in the checkpoint's `metadata`, None if the file is missing. Raises `CheckpointRefused` if it cannot
    be read."""
    file = checkpoint / "metadata"
    if not file.exists():
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointRefused(f"{file} cannot be read ({error}); restore it, or start with --new-query") from None


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
            f"{checkpoint}/metadata {state}, but this job wrote as the query {wrote}: restore it, or accept a new query"
            " with --new-query"
        )
