"""A column expression as a cost (spark-writer.md 5): whole numbers from the columns of one row.

    time_ms  closed_at  value  boolean        numbers; `value` is rounded up
    length(source)  length(metric)  length(batch)        bytes of a text in UTF-8
    +  -  *  //n  %n  min(a, b, ...)  max(a, b, ...)        n is a number of at least 1

It is read once as Python reads it, and nothing but these is taken; so it cannot fail for any row, and what is below 0
counts as 0.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable
from typing import Final

from headrace_spark.transforms.rows import Row

Number = Callable[[Row], int]
LONGEST: Final = 200
_NUMBERS: Final = frozenset({"time_ms", "closed_at", "value", "boolean"})
_TEXTS: Final = frozenset({"source", "metric", "batch"})
_EXTREMES: Final[dict[str, Callable[[list[int]], int]]] = {"min": min, "max": max}
_PLAIN: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_DIVIDING: Final[dict[type[ast.operator], Callable[[int, int], int]]] = {
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@functools.cache
def column(text: str) -> Number:
    """What a row costs, at least 0. Raises ValueError for what is no such expression."""
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    try:
        number = _number(ast.parse(text, mode="eval").body)
    except SyntaxError:
        raise ValueError("cannot be read") from None
    return lambda row: max(0, number(row))


def _number(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int(found)) if not isinstance(found, bool):
            return lambda _: found
        case ast.Name(id=name) if name in _NUMBERS:
            return lambda row: math.ceil(getattr(row, name))
        case ast.Call(func=ast.Name(id="length"), args=[ast.Name(id=name)], keywords=[]) if name in _TEXTS:
            return lambda row: len(getattr(row, name).encode())
        case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as inner, keywords=[]) if name in _EXTREMES:
            each = [_number(one) for one in inner]
            return lambda row: _EXTREMES[name]([one(row) for one in each])
        case ast.BinOp(left=left, op=sign, right=right):
            return _joined(_number(left), type(sign), right)
    raise ValueError(f"{ast.unparse(node)!r} is none of the columns, numbers and signs that are taken")


def _joined(left: Number, sign: type[ast.operator], right: ast.expr) -> Number:
    if sign in _PLAIN:
        join, other = _PLAIN[sign], _number(right)
        return lambda row: join(left(row), other(row))
    if sign in _DIVIDING and isinstance(right, ast.Constant) and isinstance(right.value, int) and right.value >= 1:
        divide, by = _DIVIDING[sign], int(right.value)
        return lambda row: divide(left(row), by)
    raise ValueError("takes +, -, *, and // and % by a number of at least 1")
