"""What a micro-batch means: a pure function of the tasks' reports and of the documents seen before.

Theory: reports are put in the order of (topic, partition, offset). A document whose id was seen, before or in this very
micro-batch, is a repeat and has no effect. What is left gives rows, dead letters and counts; rows give requests. The
plan is the same whatever the number of tasks, so a replay has the same requests.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace_spark.counts import Counts
from headrace_spark.transforms.costs import Cost
from headrace_spark.transforms.dead_letters import DeadLetter, by_reason, of_report
from headrace_spark.transforms.records import Report
from headrace_spark.transforms.rows import (
    IDENTITY,
    Bounds,
    Headers,
    Keying,
    Request,
    Row,
    highest,
    requests,
    rows,
    with_headers,
)

BREAKER_ROWS = 100


class Sifted(msgspec.Struct, frozen=True):
    """Reports without what was seen before: those that have an effect, in order, with their dead letters and ids."""

    fresh: list[Report]
    letters: list[DeadLetter]
    ids: set[str]
    counts: Counts


class Plan(msgspec.Struct, frozen=True):
    """`counts` lacks what only the sink knows: inserted, replaced and its repeats. `behind` are the rows that do not go
    out because a newer one of the same key does."""

    requests: list[Request]
    letters: list[DeadLetter]
    ids: set[str]
    counts: Counts
    behind: list[Row]


def sift(reports: Iterable[Report], seen: set[str], job: str) -> Sifted:
    """Leave out the documents in `seen`, and those that come twice here. `counts.rows` is not set."""
    counts = Counts(microbatches=1)
    fresh: list[Report] = []
    letters: list[DeadLetter] = []
    ids: set[str] = set()
    for one in sorted(reports, key=lambda report: report.place):
        if _fresh(one, counts, seen, ids):
            letters += of_report(one, job)
            fresh.append(one)
            if one.taken is not None:
                ids.add(one.taken.id)
    counts.dead_letters = by_reason(letters)
    return Sifted(fresh, letters, ids, counts)


def plan(
    reports: Iterable[Report], seen: set[str], job: str, cost: Cost, bounds: Bounds, keying: Keying = IDENTITY
) -> Plan:
    """Plan one micro-batch. `seen` holds the document ids that earlier micro-batches wrote; `bounds` are those
    of a request; `keying` says which rows are versions of one."""
    sifted = sift(reports, seen, job)
    counts = sifted.counts
    found: list[Row] = [row for one in sifted.fresh if one.taken is not None for row in rows(one.taken)]
    kept = highest(found, keying)
    known = headers(sifted.fresh)
    cut = [with_headers(request, known) for request in requests(kept, cost.of, bounds)]
    counts.rows = len(found)
    behind = [row for row in found if id(row) not in going] if len(going := set(map(id, kept))) < len(found) else []
    counts.repeats = len(behind)
    counts.requests = len(cut)
    counts.cost = sum(request.cost for request in cut)
    return Plan(cut, sifted.letters, sifted.ids, counts, behind)


def older(than: Iterable[Row], behind: Iterable[Row], keying: Keying) -> list[Row]:
    """Of the rows behind, those of the keys of `than` that are not newer than these."""
    limits = {keying.id(row): keying.version(row) for row in than}
    return [row for row in behind if (limit := limits.get(keying.id(row))) and keying.version(row) <= limit]


def headers(fresh: Iterable[Report]) -> Headers:
    """The headers that go with the rows of these records, by document."""
    return {one.taken.id: one.headers for one in fresh if one.headers and one.taken is not None}


def corrupt(reports: Iterable[Report], share: float) -> bool:
    """The circuit breaker of spark-writer.md 3: more than `share` of at least 100 rows is refused."""
    return breaks(*refused(reports), share)


def breaks(refused: int, total: int, share: float) -> bool:
    """See `corrupt`."""
    return total >= BREAKER_ROWS and refused > share * total


def refused(reports: Iterable[Report]) -> tuple[int, int]:
    """How many rows are refused, of how many. A row is a member, or a record that cannot be read at all."""
    refused = total = 0
    for one in reports:
        if one.taken is not None:
            total += one.taken.members
            refused += len(one.taken.refusals)
        elif not one.skipped:
            total += 1
            refused += 1
    return refused, total


def _fresh(one: Report, counts: Counts, *known: set[str]) -> bool:
    counts.records += 1
    if one.round:
        counts.rounds[str(one.round)] = counts.rounds.get(str(one.round), 0) + 1
    if one.skipped:
        counts.ticks += 1
        return False
    if one.taken is None:
        counts.rejected += 1
        return True
    if any(one.taken.id in ids for ids in known):
        counts.documents_repeated += 1
        counts.members_repeated += one.taken.members
        return False
    counts.documents += 1
    counts.members += one.taken.members
    counts.members_rejected += len(one.taken.refusals)
    counts.members_taken += one.taken.members - len(one.taken.refusals)
    counts.members_empty += one.taken.empty
    counts.text_leaves_dropped += one.taken.texts
    return True
