"""The audit of the books (capacity.md 9): is there a target or a slot that nothing accounts for?

buffer not empty, a recent batch, a live one, a held slot   audit-skip
else target and inflight 0                                  audit-pass
else                                                        audit-fail: 1 target, 2 inflight, 3 both; set to 0
"""

from __future__ import annotations

from dataclasses import dataclass

TARGET_LEAK, SLOT_LEAK = 1, 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the audit looks at. `since_raised_ms` None: no batch was ever raised, which counts as long ago."""

    buffered: int
    since_raised_ms: int | None
    live_batches: int
    held_slots: int
    target_left: bool
    inflight: int


def verdict(found: Evidence, max_operation_ms: int) -> tuple[str, int]:
    """Name and value of the event: `audit-skip`, `audit-pass`, or `audit-fail` with the mask of what leaked."""
    recent = found.since_raised_ms is not None and found.since_raised_ms <= max_operation_ms
    if found.buffered or recent or found.live_batches or found.held_slots:
        return "audit-skip", 0
    mask = (TARGET_LEAK if found.target_left else 0) | (SLOT_LEAK if found.inflight else 0)
    return ("audit-fail", mask) if mask else ("audit-pass", 0)
