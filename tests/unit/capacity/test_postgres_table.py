"""Clients that make the table of a fresh database at once: whatever PostgreSQL tells the later ones, it is there."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from headrace_capacity.postgres import TABLE, _make_table


class Late:
    """Sees no table, and is told that somebody else has made it."""

    def __init__(self, told: psycopg.Error) -> None:
        self.told = told

    def execute(self, query: str) -> Any:
        if query == TABLE:
            raise self.told
        return self

    def fetchone(self) -> tuple[None]:
        return (None,)


@pytest.mark.parametrize("told", ["DuplicateTable", "UniqueViolation", "DuplicateObject"])
def test_who_is_late_takes_the_table_as_made(told: str) -> None:
    """Of the table, of its row in a catalogue, of its type."""
    _make_table(Late(getattr(psycopg.errors, told)("already exists")))  # type: ignore[arg-type]


def test_what_else_goes_wrong_is_raised() -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        _make_table(Late(psycopg.errors.InsufficientPrivilege("no")))  # type: ignore[arg-type]
