"""The page of the Spark writer names a test for each of the 17 restart cases, and each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spark-writer.md").read_text()
TESTS = ROOT / "tests" / "spark"


def cases(text: str, row: str) -> dict[int, list[str]]:
    """The cells behind the number, by case."""
    found = re.findall(row, text, re.MULTILINE)
    return {int(number): rest.split("|") for number, rest in found}


def test_every_case_has_a_test_in_the_short_run_that_is_there() -> None:
    spec = (ROOT / "docs" / "spec" / "spark-writer.md").read_text()
    wanted = cases(spec[spec.index("## 10.") : spec.index("## 11.")], r"^\| (\d+) \|(.*)$")
    section = PAGE[PAGE.index("## What restarts do") : PAGE.index("## What to look at")]
    found = cases(section, r"^\| (\d+) (.*)$")
    assert found.keys() == wanted.keys()
    for number, cells in found.items():
        short, long = (re.findall(r"`(\w+\.py)::(\w+)`", cell) for cell in cells[1:3])
        assert short, f"case {number}"
        for marked, names in ((False, short), (True, long)):
            for file, name in names:
                assert in_soak(file, name) == marked, f"case {number}: {file}::{name}"


def in_soak(file: str, name: str) -> bool:
    """Whether all forms of a test carry the marker `soak`; fails if there is no such test."""
    text = (TESTS / file).read_text()
    assert f"\ndef {name}(" in text, f"{file}::{name}"
    marks = text[: text.index(f"\ndef {name}(")].rsplit("\n\n\n", 1)[-1]
    return "@pytest.mark.soak" in marks or "pytest.mark.soak" in text.partition("pytestmark")[2].partition("\n")[0]
