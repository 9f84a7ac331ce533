"""The audit of the books (capacity.md 9): is there a target or a slot that nothing accounts for?"""

from __future__ import annotations

from dataclasses import dataclass

TARGET_LEAK, SLOT_LEAK = 1, 2


@dataclass(frozen=True, slots=True)
class Books:
    """What the audit looks at. `since_raised_ms` None: no batch was ever raised, which counts as long ago."""

    buffered: int
    since_raised_ms: int | None
    live_batches: int
    held_slots: int
    target_left: bool
    inflight: int


def verdict(books: Books, max_operation_ms: int) -> tuple[str, int]:
    """Name and value of the event: `audit-skip`, `audit-pass`, or `audit-fail` with the mask of what leaked."""
    recent = books.since_raised_ms is not None and books.since_raised_ms <= max_operation_ms
    if books.buffered or recent or books.live_batches or books.held_slots:
        return "audit-skip", 0
    mask = (TARGET_LEAK if books.target_left else 0) | (SLOT_LEAK if books.inflight else 0)
    return ("audit-fail", mask) if mask else ("audit-pass", 0)
