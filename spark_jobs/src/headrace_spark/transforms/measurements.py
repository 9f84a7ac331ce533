"""From a batch document to measurements (architecture.md "From batch to measurements", spark-writer.md 3 and 4).

Theory: a member's value is a tree. Each numeric or boolean leaf is one measurement; its metric is the type, or the type
and the path joined by `.` (a list counts its elements 0, 1, ...). Text leaves are dropped and counted. A flaw or a null
anywhere in a member rejects this member whole, so a member is either in the store or in the dead letters, never half.
So: members = taken + rejected, and each leaf of a taken member is a row or a dropped text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from headrace_spark.transforms.decode import Document, Flaw, Rejected, only, text, text_problem, time_ms

_NAMES: Final = frozenset({"type", "time", "received", "value"})
_NESTS: Final = frozenset({dict, list})
MAX_KEY_BYTES: Final = 2048
"""Of source and metric together, in UTF-8: what an index of every store takes (PostgreSQL: 2,704 with its overhead).
One row beyond it would be refused by the store for ever, and hold up all others."""


class Measurement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One leaf. `time_ms` is event time; a boolean has `value` 0.0 or 1.0 and `boolean` set."""

    metric: str
    time_ms: int
    value: float
    boolean: bool


class Refusal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member that is not taken: its index, the reason and a detail for people."""

    element: int
    reason: str
    detail: str


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """What a document gave. `members` counts all of them; `texts` the dropped leaves; `empty` taken members without a
    measurement."""

    id: str
    source: str
    closed_at: int
    members: int
    measurements: list[Measurement]
    refusals: list[Refusal]
    texts: int
    empty: int


Fits = Callable[[Measurement], bool]


def measurements(document: Document, fits: Fits | None = None, left: frozenset[int] | None = None) -> Taken:
    """Every measurement of the document in order, and every member that is not taken. `fits`: whether the capacity
    takes this one alone, None if it takes every one. `left`: only these members are still to be done, None for all."""
    rows: list[Measurement] = []
    refusals: list[Refusal] = []
    texts = empty = 0
    count = len(document.members)
    counted = range(count) if left is None else sorted(element for element in left if element < count)
    metric_bytes = MAX_KEY_BYTES - len(document.source.encode())
    for element in counted:
        member = document.members[element]
        try:
            found, dropped = of_member(member, metric_bytes)
            if fits is not None:
                _affordable(found, fits)
        except Rejected as error:
            refusals.append(Refusal(element, error.reason, error.detail))
            continue
        rows += found
        texts += dropped
        empty += not found
    return Taken(document.id, document.source, document.closed_at, len(counted), rows, refusals, texts, empty)


def _affordable(found: list[Measurement], fits: Fits) -> None:
    for one in found:
        if not fits(one):
            raise Rejected("too_expensive", f"{one.metric} alone costs more than the capacity")


def of_member(member: Any, metric_bytes: int = MAX_KEY_BYTES) -> tuple[list[Measurement], int]:
    """The measurements of one member and the number of its text leaves. A metric may have `metric_bytes`. Raises
    `Rejected`."""
    if isinstance(member, Flaw):
        raise Rejected(member.reason, member.detail)
    if not isinstance(member, dict):
        raise Rejected("schema", "a member is an object")
    only(member, _NAMES)
    time_ms(member.get("received"), "received")
    kind, time = text(member.get("type"), "type", empty=True), time_ms(member.get("time"), "time")
    if "value" not in member:
        raise Rejected("schema", "value is missing")
    found: dict[str, Measurement] = {}
    texts = 0
    for metric, leaf in _leaves(kind, member["value"]):
        if isinstance(leaf, str):
            texts += 1
            continue
        if metric in found:
            raise Rejected("duplicate_key", f"two values have the metric {metric!r}")
        found[metric] = _measurement(metric, time, leaf, metric_bytes)
    return list(found.values()), texts


def _measurement(metric: str, time: int, leaf: Any, metric_bytes: int) -> Measurement:
    if isinstance(leaf, Flaw):
        raise Rejected(leaf.reason, f"{metric}: {leaf.detail}")
    if leaf is None:
        raise Rejected("null_value", f"{metric} is null")
    problem = text_problem(metric)
    if problem:
        raise Rejected("schema", f"the metric {problem}")
    if len(metric) > metric_bytes or (not metric.isascii() and len(metric.encode()) > metric_bytes):
        raise Rejected("too_large", f"source and metric have more than {MAX_KEY_BYTES} bytes")
    return Measurement(metric, time, float(leaf), isinstance(leaf, bool))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        below = [(f"{path}.{name}", leaf) for name, leaf in value.items()]
    elif isinstance(value, list):
        below = [(f"{path}.{index}", leaf) for index, leaf in enumerate(value)]
    else:
        yield path, value
        return
    for name, leaf in below:
        if type(leaf) in _NESTS:
            yield from _leaves(name, leaf)
        else:
            yield name, leaf
