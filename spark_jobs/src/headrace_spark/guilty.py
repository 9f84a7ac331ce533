"""Rows that a table refuses (spark-writer.md 7, PostgreSQL, step 4): where they came from, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace_spark.settings import Settings
from headrace_spark.transforms.dead_letters import DeadLetter, Guilty, sink_rejected
from headrace_spark.transforms.records import Place, Record

Fetch = Callable[[Sequence[Place]], Sequence[Record]]
"""Reads these records of the micro-batch again."""


def letters(guilty: Sequence[Guilty], fetch: Fetch, settings: Settings) -> list[DeadLetter]:
    """One dead letter for each member of which a row is refused."""
    if not guilty:
        return []
    records = {(one.topic, one.partition, one.offset): one for one in fetch([one.place for one in guilty])}
    return list(sink_rejected([(records[one.place], one) for one in guilty], settings.max_document_bytes, settings.job))
