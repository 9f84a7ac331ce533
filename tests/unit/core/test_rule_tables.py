"""The tables that lead from the sections of a specification to the modules of an engine name all of both."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

ENGINES = ["packing", "registration", "timeline"]


def rows(engine: str) -> list[list[str]]:
    """Cells of the table in the docstring of the package, without its head."""
    text = import_module(f"headrace_core.{engine}").__doc__ or ""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_module_is_in_the_table_and_every_name_in_it_is_a_module(engine: str) -> None:
    folder = Path(import_module(f"headrace_core.{engine}").__file__ or "").parent
    modules = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if path.name != "__init__.py"}
    named = {name for row in rows(engine) for cell in row for name in re.findall(r"`([a-z_/]+\.py)`", cell)}
    used = {"refusals.py", "work.py"} & modules  # what the others share, no rule of its own
    assert named - modules == set()
    assert modules - named - used == set()


@pytest.mark.parametrize(
    ("engine", "sections"),
    [("packing", range(1, 8)), ("registration", range(1, 15)), ("timeline", [*range(2, 13), 16])],
)
def test_every_section_is_in_the_table(engine: str, sections: list[int]) -> None:
    named = {int(number) for row in rows(engine) for number in re.findall(r"(?<![\d.])(\d+)", row[0])}
    assert set(sections) - named == set()
