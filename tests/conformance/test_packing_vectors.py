"""Every worked example of the packer, each with the invariants I1 to I5 of packing.md 2."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace_core.packing.ids import subject_of
from headrace_core.packing.packer import pack
from tests.support.packing import Row, broken_invariants, plain_count

VECTORS = json.loads((Path(os.environ.get("HEADRACE_VECTORS", "tests/vectors")) / "packing.json").read_text())[
    "vectors"
]


def rows_of(vector: dict[str, Any]) -> list[Row]:
    rows = [Row(*each) for each in vector["measurements"]]
    for rule in vector.get("generate", []):
        rows += [Row(rule["id"].replace("#", str(k)), rule["time"], k) for k in range(rule["count"])]
    return rows


def batches_of(rows: list[Row], maximum: int) -> list[list[Row]]:
    numbers = pack([r.id for r in rows], [r.time for r in rows], maximum).tolist()
    batches: list[list[Row]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for row, number in zip(rows, numbers, strict=True):
        batches[number].append(row)
    return batches


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_it_packs_as_the_worked_example_says(vector: dict[str, Any]) -> None:
    rows, maximum, expect = rows_of(vector), vector["max"], vector["expect"]
    batches = batches_of(rows, maximum)
    assert [len(b) for b in batches] == expect["sizes"]
    if "batches" in expect:
        assert [Counter(b) for b in batches] == [Counter(Row(*row) for row in b) for b in expect["batches"]]
    assert broken_invariants(rows, batches, maximum) == []
    plain = plain_count([(subject_of(r.id), r.time) for r in rows], maximum)
    assert len(batches) <= plain
    assert plain == expect.get("plain_count", plain)
