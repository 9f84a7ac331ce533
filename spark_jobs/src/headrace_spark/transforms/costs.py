"""What a request costs (spark-writer.md 5): a pure function of its rows, in capacity units.

Forms, and sums of them: `per_request(n)`, `per_row(n)`, `per_kib(n)` for each KiB of the request or part of it,
`column(expression)` for each row (`columns.py`), and `call(module:function)`, where the function gets the rows and
returns an integer of at least 0. A request above the
capacity is cut in halves; a single row above it is refused with its member (`too_expensive`), in the task.

`learned(sum)`, where the sink tells what it charges: rows are cut by the sum, so a replay has the same requests; what a
request costs when it goes out is the mean of what requests of as many rows were charged (`attempts.py`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from headrace_core.errors import ConfigError
from headrace_spark.transforms.columns import column
from headrace_spark.transforms.rows import Row

_TERM: Final = re.compile(r"(per_row|per_request|per_kib)\(([1-9][0-9]{0,8})\)")
_LEARNED: Final = re.compile(r"learned\((.+)\)")
_COLUMN: Final = re.compile(r"column\((.+)\)")
_CALL: Final = re.compile(r"call\(([A-Za-z_][\w.]*):([A-Za-z_]\w*)\)")
KIB: Final = 1024


class Cost(msgspec.Struct, frozen=True):
    """The terms of the sum; `column` is an expression, `call` is `module:function`, or empty; `learned`: the sum is
    only the base."""

    per_row: int = 0
    per_request: int = 0
    per_kib: int = 0
    column: str = ""
    call: str = ""
    learned: bool = False

    def __call__(self, rows: int, size: int = 0) -> int:
        """The cost of so many rows of `size` bytes together, without `column` and `call`."""
        return self.per_row * rows + self.per_request + self.per_kib * -(-size // KIB)

    def of(self, rows: Sequence[Row]) -> int:
        """The cost of these rows as one request. Raises `ConfigError` if the function returns no cost."""
        size = sum(row.size for row in rows) if self.per_kib else 0
        each = sum(map(column(self.column), rows)) if self.column else 0
        return self(len(rows), size) + each + (self._called(rows) if self.call else 0)

    @property
    def varies(self) -> bool:
        """Rows do not all cost the same."""
        return bool(self.per_kib or self.content)

    @property
    def content(self) -> str:
        """The term, if any, whose cost only the rows themselves tell; not their number and size."""
        return f"column({self.column})" if self.column else f"call({self.call})" if self.call else ""

    def largest(self, capacity: int) -> int:
        """Most rows of one request within `capacity`, as far as their number says; 0 if not even one row fits, -1 if
        any number does."""
        left = capacity - self.per_request - self.per_kib
        if left < 0:
            return 0
        return left // self.per_row if self.per_row else -1

    def function(self) -> Callable[[Sequence[Row]], Any]:
        """What `call` names. Raises `ConfigError`."""
        module, _, name = self.call.partition(":")
        try:
            found: Callable[[Sequence[Row]], Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError("cost", f"call({self.call}) cannot be loaded: {error}") from None
        return found

    def _called(self, rows: Sequence[Row]) -> int:
        charge = self.function()(rows)
        if isinstance(charge, bool) or not isinstance(charge, int) or charge < 0:
            raise ConfigError("cost", f"call({self.call}) returned {charge!r}, which is no integer of at least 0")
        return charge


class Dearest(msgspec.Struct, frozen=True):
    """What a single row may cost: at most `capacity` by each of `costs`."""

    costs: list[Cost]
    capacity: int

    def fits(self, row: Row) -> bool:
        """Whether it can ever be sent."""
        return all(cost.of([row]) <= self.capacity for cost in self.costs)


def cost(text: str, field: str = "cost") -> Cost:
    """Read a setting like `cost`. Raises `ConfigError`."""
    text = text.replace(" ", "")
    inner = _LEARNED.fullmatch(text)
    found: dict[str, Any] = {"learned": True} if inner else {}
    for term in _terms(inner[1] if inner else text):
        name, value = _term(term, field)
        if not name or name in found:
            raise ConfigError(
                field,
                "must be a sum of per_row(n), per_request(n), per_kib(n) with n of at least 1, column(expression) and"
                f" call(module:function), each once at most, or learned(sum), not {text!r}",
            )
        found[name] = value
    return Cost(**found)


def _terms(text: str) -> list[str]:
    """Cut at each + that is inside no parentheses."""
    found, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "+" and not depth:
            found.append("")
        else:
            found[-1] += sign
    return found


def _term(text: str, field: str) -> tuple[str, int | str]:
    """Its name and what it is given; no name if it is none. Raises `ConfigError` for a wrong expression."""
    if number := _TERM.fullmatch(text):
        return number[1], int(number[2])
    if called := _CALL.fullmatch(text):
        return "call", f"{called[1]}:{called[2]}"
    if not (given := _COLUMN.fullmatch(text)):
        return "", ""
    try:
        column(given[1])
    except ValueError as error:
        raise ConfigError(field, f"{text} {error}") from None
    return "column", given[1]
