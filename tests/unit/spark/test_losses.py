"""What counts as a loss of offsets, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_spark import losses
from headrace_spark.database import Database
from headrace_spark.folders.local import LocalFolder
from headrace_spark.ledger import Ledger
from headrace_spark.losses import DataLost, Gap


def checkpoint(at: Path, ends: dict[int, str], committed: int, first: str = '{"t":{"0":2}}') -> LocalFolder:
    """Micro-batches with the offsets at their ends; those up to `committed` are in the commit log."""
    for folder in ("offsets", "commits", "sources/0"):
        (at / folder).mkdir(parents=True)
    (at / "sources/0/0").write_bytes(b"\0v1\n" + first.encode())
    for number, offsets in ends.items():
        (at / "offsets" / str(number)).write_text(f"v1\n{{}}\n{offsets}")
        if number <= committed:
            (at / "commits" / str(number)).write_text("v1\n{}")
    return LocalFolder(at)


def test_a_topic_that_is_read_no_more_is_told_from_one_that_was_deleted() -> None:
    wanted = {("a", 0): 3, ("a", 1): 0, ("b", 0): 1}
    assert losses.renamed(wanted, ["a", "b"]) == ([], [])
    assert losses.renamed(wanted, ["c", "a"]) == (["b"], ["c"])
    assert losses.renamed({}, ["a"]) == ([], [])


def test_what_is_needed_begins_where_the_last_committed_micro_batch_ended(tmp_path: Path) -> None:
    ends = {0: '{"t":{"0":5}}', 1: '{"t":{"0":9,"1":3}}'}
    assert losses.needed(LocalFolder(tmp_path / "new"), None) == {}
    assert losses.needed(checkpoint(tmp_path / "a", ends, 1), None) == {("t", 0): 9, ("t", 1): 3}
    open_one = checkpoint(tmp_path / "b", ends, 0)
    assert losses.needed(open_one, None) == {("t", 0): 5}
    assert losses.needed(open_one, 1) == {("t", 0): 9, ("t", 1): 3}, "the ledger has it, so it is not read again"
    assert losses.needed(checkpoint(tmp_path / "c", ends, -1), None) == {("t", 0): 2}


def test_a_partition_that_begins_later_has_lost_what_is_between() -> None:
    wanted = {("t", 0): 5, ("t", 1): 7, ("u", 0): 0}
    assert losses.gaps(wanted, {("t", 0): 5, ("t", 1): 3, ("u", 0): 0}) == []
    [gap] = losses.gaps(wanted, {("t", 0): 5, ("t", 1): 9, ("u", 0): 0})
    assert (gap, gap.count) == (Gap("t", 1, 7, 8), 2)
    assert str(gap) == "t, partition 1: offsets 7 to 8, 2 of them"


@pytest.mark.parametrize(
    ("ends", "then", "now", "told"),
    [
        ({("t", 0): 9}, {"t": "a"}, {"t": "a"}, ""),
        ({("t", 0): 9, ("t", 1): 4}, {}, {"t": "a"}, ""),
        ({("t", 0): 9}, {"t": "a"}, {"t": "b"}, "another one than before: its id is b, it was a"),
        ({("t", 0): 8}, {"t": "a"}, {"t": "a"}, "partition 0 ends at 8, but offset 9 is next"),
        ({}, {"t": "a"}, {}, "partition 0 is not there"),
    ],
)
def test_a_topic_made_again_is_another_topic(
    ends: dict[tuple[str, int], int], then: dict[str, str], now: dict[str, str], told: str
) -> None:
    found = losses.replaced({("t", 0): 9}, ends, then, now)
    assert len(found) == bool(told)
    assert told in "".join(found)


def test_a_gap_can_be_accepted_but_another_topic_cannot() -> None:
    gap = Gap("t", 0, 1, 3)
    losses.check([], [], accept=False)
    losses.check([gap], [], accept=True)
    with pytest.raises(DataLost, match=r"partition 0: offsets 1 to 3, 3 of them; .*--accept-loss"):
        losses.check([gap], [], accept=False)
    with pytest.raises(DataLost, match="other"):
        losses.check([], ["other"], accept=True)


def test_an_accepted_gap_is_written_and_counted_once(tmp_path: Path) -> None:
    ledger = Ledger(Database(f"sqlite://{tmp_path}/s.db"), "w")
    ledger.prepare()
    for _ in range(2):
        ledger.accept("t", 0, 3, 7, 1)
    ledger.accept("t", 1, 3, 3, 1)
    assert ledger.totals().offsets_lost == 6
    ledger.remember_topics({"t": "a", "u": "b"})
    ledger.remember_topics({"t": "c"})
    assert ledger.topics() == {"t": "c", "u": "b"}
