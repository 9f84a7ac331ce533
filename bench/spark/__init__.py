"""Figures of spark-writer.md 13: the writer as a process, with real Kafka, Spark and PostgreSQL."""

from __future__ import annotations

PARTS = (
    "plain", "decoding", "staged", "direct", "overhead", "skew", "saturated", "one_with_little_work", "slices",
)  # fmt: skip
"""What can be measured alone: names of functions of `figures`."""
