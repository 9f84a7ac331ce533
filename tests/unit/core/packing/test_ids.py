"""Subjects, batch ids, lanes by shuffle."""

from __future__ import annotations

import pytest

from headrace_core.packing.ids import (
    UNSPLITTABLE,
    batch_id,
    shuffled_batch_id,
    shuffled_lane,
    subject_of,
)


@pytest.mark.parametrize(("ingestion_id", "subject"), [("a$m", "a"), ("te/device/a//$temp.inside", "te/device/a//")])
def test_an_id_with_one_dollar_between_two_parts_is_split(ingestion_id: str, subject: str) -> None:
    assert subject_of(ingestion_id) == subject


@pytest.mark.parametrize("ingestion_id", ["raw", "a$b$c", "$m", "s$", "$", "", "a$$"])
def test_every_other_id_is_unsplittable(ingestion_id: str) -> None:
    assert subject_of(ingestion_id) == UNSPLITTABLE


def test_the_table_is_asked_first_and_may_lack_the_id() -> None:
    table = {"raw": "s9", "a$m": "s8"}
    assert [subject_of(each, table) for each in ("raw", "a$m", "b$m", "other")] == ["s9", "s8", "b", UNSPLITTABLE]


def test_a_batch_id_names_lane_offsets_and_place() -> None:
    assert batch_id(3, 100, 180, 0) == "3:100:180:0"
    assert shuffled_batch_id(3, 17, 2) == "3:17:2"


def test_a_shuffled_lane_is_the_partition_a_producer_would_choose() -> None:
    """Reference values of Kafka's own murmur2 tests: "foobar" -> -790332482, "21" -> -973932308."""
    assert shuffled_lane("foobar", 1000) == (-790332482 & 0x7FFFFFFF) % 1000
    assert shuffled_lane("21", 1000) == (-973932308 & 0x7FFFFFFF) % 1000
    assert 0 <= shuffled_lane(UNSPLITTABLE, 7) < 7
