"""The table of reasons is that of registration.md 11, and every reason that the engine gives is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace_core.registration
from headrace_core.registration.reasons import TABLE, Reason, outcome

SPEC = Path(__file__).parents[4] / "docs" / "spec" / "registration.md"
ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| ([RLD-]) \| ([-\d, ]+) \|", re.MULTILINE)


def spec_rows() -> Iterator[tuple[str, Reason]]:
    """Reasons of a row that has several statuses have them in this order; one status is that of all."""
    for names, kind, http in ROW.findall(SPEC.read_text()):
        reasons = re.findall(r"\w+", names)
        codes = [None if code == "-" else int(code) for code in http.split(", ")]
        for reason, code in zip(reasons, codes if len(codes) > 1 else codes * len(reasons), strict=False):
            yield reason, Reason(None if kind == "-" else kind, code)


def test_the_table_is_that_of_the_specification() -> None:
    expected = dict(spec_rows())
    assert len(expected) > 30
    assert expected == TABLE


def test_every_reason_in_the_code_is_in_the_table() -> None:
    folder = Path(headrace_core.registration.__file__).parent
    given = {reason for path in folder.rglob("*.py") for reason in re.findall(r'Refusal\(\s*"(\w+)"', path.read_text())}
    assert len(given) > 20
    assert given <= TABLE.keys()


@pytest.mark.parametrize(
    ("reason", "prefix"), [("no_parent", "refused"), ("evicted", "lost"), ("cancelled", "discarded")]
)
def test_the_class_of_a_reason_names_its_counter(reason: str, prefix: str) -> None:
    assert outcome(reason) == prefix
