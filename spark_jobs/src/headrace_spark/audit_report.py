"""The report of a replay audit in the state store (spark-writer.md 11).

`hr_audit` has a row for each run, `hr_audit_source` one for each source in it, `hr_audit_difference` one for each batch
that is not equal, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec

from headrace_spark.database import Database

VERDICTS: Final = ("equal", "missing", "extra", "different")
MOST_DIFFERENCES: Final = 10_000
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS hr_audit (run TEXT PRIMARY KEY, job TEXT NOT NULL, started_at BIGINT NOT NULL,"
    " settings TEXT NOT NULL, edges TEXT NOT NULL, equal BIGINT NOT NULL, missing BIGINT NOT NULL,"
    " extra BIGINT NOT NULL, different BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS hr_audit_source (run TEXT NOT NULL, source TEXT NOT NULL, equal BIGINT NOT NULL,"
    " missing BIGINT NOT NULL, extra BIGINT NOT NULL, different BIGINT NOT NULL, PRIMARY KEY (run, source))",
    "CREATE TABLE IF NOT EXISTS hr_audit_difference (run TEXT NOT NULL, kafka_partition BIGINT NOT NULL,"
    " id TEXT NOT NULL, source TEXT NOT NULL, verdict TEXT NOT NULL, PRIMARY KEY (run, kafka_partition, id))",
)
_CHUNK: Final = 1000
Difference = tuple[int, str, str, str]
"""Partition, batch id, source, verdict."""


class Run(msgspec.Struct, frozen=True):
    """One audit: who, when (UTC ms), with what, and how far it judged."""

    run: str
    job: str
    started_at: int
    settings: str
    edges: str


def write(
    database: Database,
    run: Run,
    sources: Iterable[tuple[str, Mapping[str, int]]],
    differences: Iterable[Difference],
) -> dict[str, int]:
    """Write the report; the row in `hr_audit` comes last. Returns how many batches have each verdict. Raises
    `StateDown`."""
    totals = dict.fromkeys(VERDICTS, 0)
    with database.transaction() as at:
        at.make(_TABLES)
    rest = iter(sources)
    while part := list(islice(rest, _CHUNK)):
        with database.transaction() as at:
            at.many(
                "INSERT INTO hr_audit_source VALUES (?, ?, ?, ?, ?, ?)",
                [(run.run, source, *(found[name] for name in VERDICTS)) for source, found in part],
            )
        for _, found in part:
            for name in VERDICTS:
                totals[name] += found[name]
    with database.transaction() as at:
        at.many("INSERT INTO hr_audit_difference VALUES (?, ?, ?, ?, ?)", [(run.run, *one) for one in differences])
        whole = (*msgspec.structs.astuple(run), *totals.values())
        at.run("INSERT INTO hr_audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", whole)
    return totals
