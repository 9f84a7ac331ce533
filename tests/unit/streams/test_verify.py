"""What is compared, what differs, and what cannot be told because the changelog was compacted or a writer was late."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace_core.changelog import MARKER_KEY, Marker
from headrace_streams.store import POSITION_KEY, Position
from headrace_streams.verify import NotCompared, Said, databases, expected, judge
from tests.support.counting_stage import CountingStage

AT = Position(Marker(source=9, clock=90, epoch=1), changelog=100)


def eight(number: int) -> bytes:
    return number.to_bytes(8, "big")


def counted(**counts: int) -> dict[bytes, bytes]:
    """A database of the counting stage: primary `c`, derived `n`."""
    items = {b"c" + name.encode(): eight(count) for name, count in counts.items()}
    return items | {b"n" + eight(count) + name.encode(): b"" for name, count in counts.items()}


def said(*records: tuple[int, bytes, bytes | None, int], marker: Marker = AT.marker, marker_at: int = 99) -> Said:
    """A changelog of (offset, key, value, source), with the position's marker."""
    found = Said(AT, end=120)
    for record in (*records, (marker_at, MARKER_KEY, msgspec.json.encode(marker), marker.source)):
        found.add(*record)
    return found


def test_an_equal_database_is_equal_with_its_derived_keys() -> None:
    log = said((1, b"ca", eight(1), 3), (2, b"ca", eight(2), 8), (3, b"cb", eight(5), 8), (4, b"cb", None, 9))
    found, summary = judge(3, CountingStage(), log, counted(a=2) | {POSITION_KEY: b"{}"})
    assert found == []
    assert (summary.keys, summary.derived, summary.undecided, summary.behind, summary.source) == (1, 1, 0, 20, 9)


def test_altered_missing_and_surplus_keys_are_named() -> None:
    log = said((1, b"ca", eight(2), 8), (2, b"cb", eight(3), 8))
    there = counted(a=2, b=3, c=4)
    there[b"ca"] = eight(7)
    del there[b"n" + eight(3) + b"b"]
    found, summary = judge(3, CountingStage(), log, there)
    assert [(one.key, one.derived) for one in found] == [
        (b"ca", False), (b"cc", False), (b"n" + eight(3) + b"b", True), (b"n" + eight(4) + b"c", True)
    ]  # fmt: skip
    assert (found[0].changelog, found[0].database) == (eight(2), eight(7))
    assert found[1].changelog is found[2].database is None
    assert summary.differing == 4


def test_the_highest_source_offset_wins_and_not_the_last_record() -> None:
    log = said((1, b"ca", eight(2), 8), (5, b"ca", eight(1), 4))
    assert judge(3, CountingStage(), log, counted(a=2))[0] == []


def test_what_comes_after_the_position_is_not_compared() -> None:
    log = said((1, b"ca", eight(2), 8), (100, b"ca", eight(3), 10), (101, b"cb", eight(1), 10))
    assert judge(3, CountingStage(), log, counted(a=2))[0] == []


def test_a_late_writers_chunk_that_goes_further_than_the_database_is_not_compared() -> None:
    log = said((1, b"ca", eight(2), 8), (50, b"ca", eight(3), 12))
    assert judge(3, CountingStage(), log, counted(a=2))[0] == []


def test_a_key_that_was_compacted_away_is_undecided_with_what_derives_from_it() -> None:
    log = said((101, b"ca", eight(3), 10))
    found, summary = judge(3, CountingStage(), log, counted(a=2))
    assert (found, summary.undecided) == ([], 2)
    found, summary = judge(3, CountingStage(), said((1, b"cb", eight(1), 2), (101, b"ca", eight(3), 10)), counted(a=2))
    assert [one.key for one in found] == [b"cb"]


def test_another_marker_differs_and_one_that_was_compacted_away_cannot_be_told() -> None:
    other = said(marker=Marker(source=9, clock=91, epoch=1))
    assert [one.key for one in judge(3, CountingStage(), other, {})[0]] == [MARKER_KEY]
    gone = said(marker=Marker(source=11, clock=99, epoch=1), marker_at=110)
    assert judge(3, CountingStage(), gone, {})[0] == []
    never = Said(AT)
    assert [one.key for one in judge(3, CountingStage(), never, {})[0]] == [MARKER_KEY]


def test_a_changelog_that_a_stage_cannot_read_is_not_compared() -> None:
    class Picky(CountingStage):
        def derive(self, *_: object) -> None:
            raise ValueError("damaged")

    with pytest.raises(NotCompared, match="damaged"):
        expected(Picky(), said((1, b"ca", b"x", 3)))


def test_databases_are_the_folders_with_numbers(tmp_path: Path) -> None:
    for name in ("0", "11", "0.damaged-17", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "0.damaged").touch()
    assert list(databases(tmp_path, None)) == [0, 11]
    assert databases(tmp_path, 11) == {11: tmp_path / "11"}
    for folder, partition in ((tmp_path, 2), (tmp_path / "nobody", None)):
        with pytest.raises(NotCompared):
            databases(folder, partition)
