"""The empty sink: it takes every request at once, so what is left is the writer's own work."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_spark.sinks.callables import Context
from headrace_spark.transforms.rows import Row


def nothing(rows: Sequence[Row], context: Context) -> None:
    """Done."""


nothing.idempotent = True  # type: ignore[attr-defined]
