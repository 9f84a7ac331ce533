"""Numbering subjects: by first appearance, the same whether ids repeat (a dictionary) or not (numpy over bytes)."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.packing import subjects as module
from headrace_core.packing.ids import UNSPLITTABLE, subject_of
from headrace_core.packing.subjects import SAMPLE, number_subjects


def plainly(ids: list[str]) -> tuple[list[int], list[str]]:
    """Numbers and names, one id after the other."""
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(subject_of(each), len(numbers)) for each in ids]
    return codes, list(numbers)


def check(ids: list[str]) -> None:
    subjects = number_subjects(ids)
    codes, names = plainly(ids)
    assert subjects.codes.tolist() == codes
    assert list(subjects.names) == names
    assert subjects.unsplittable == (names.index(UNSPLITTABLE) if UNSPLITTABLE in names else -1)


def test_subjects_are_numbered_by_first_appearance_and_unsplittable_ids_share_one_number() -> None:
    subjects = number_subjects(["b$x", "raw", "a$x", "b$y", "s$"])
    assert subjects.codes.tolist() == [0, 1, 2, 0, 1]
    assert list(subjects.names) == ["b", UNSPLITTABLE, "a"]
    assert subjects.unsplittable == 1
    assert number_subjects(["b$x"]).unsplittable == -1


def test_a_table_is_asked_for_each_id() -> None:
    ids = [f"d{n}$m" for n in range(2 * SAMPLE)]
    subjects = number_subjects(ids, {"d1$m": "d0"})
    assert subjects.codes.tolist() == [0, 0, *range(1, 2 * SAMPLE - 1)]


KINDS: dict[str, Callable[[int], str]] = {
    "each its own subject": lambda n: f"device{n}$temperature",
    "many metrics of few subjects": lambda n: f"device{n % 7}$metric{n}",
    "some unsplittable": lambda n: (f"device{n}", f"$m{n}", f"s{n}$", f"a${n}$c", f"d{n}$m")[n % 5],
    "all unsplittable": lambda n: f"raw{n}",
    "from one letter to several words": lambda n: f"{'x' * (n % 60)}{n % 3}$m{n}",
    "letters of several bytes": lambda n: f"Gerät{n}\udc80ø$°C",
    "zeros at the end": lambda n: "d" + "\0" * (n % 9) + f"$m{n}",
    "line ends": lambda n: f"line\n{n // 2}$m{n}",
    "long subjects": lambda n: f"{'long' * 20}{n}$m",
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_do_not_repeat_get_the_same_numbers(kind: str) -> None:
    ids = [KINDS[kind](n) for n in range(3 * SAMPLE)]
    random.Random(kind).shuffle(ids)
    check(ids)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("ab$\n\0ü", max_size=5), max_size=40))
def test_ids_of_any_form_get_the_same_numbers(some: list[str]) -> None:
    check([*some, *(f"{n}$m" for n in range(SAMPLE)), *some])


def test_subjects_whose_mixes_are_equal_are_still_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FACTOR", np.uint64(0))
    check([f"device{n}$temperature" for n in range(2 * SAMPLE)])
