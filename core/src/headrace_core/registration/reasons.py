"""Reasons: the class of each (registration.md 11) and its HTTP status; `Refusal` carries one to where it is answered.

Class R (refused) and L (lost) leave one dead letter a message, class D (discarded) none; all are counted.
"""

from __future__ import annotations

from headrace_core.errors import HeadraceError

LOST = frozenset({"metadata_full", "too_large", "evicted", "expired", "unregistered_signal"})
DISCARDED = frozenset({"cancelled", "clear_of_unknown"})

HTTP_STATUS = {
    "missing_type": 422,
    "missing_topic_id": 422,
    "id_in_use": 409,
    "exists": 409,
    "too_large": 413,
    "not_found": 404,
    "method_not_allowed": 405,
    "unsupported_media_type": 415,
    "precondition_failed": 412,
    "too_many_streams": 429,
    "not_ready": 503,
    "timeout": 504,
}
"""Status of each reason; all others are 400."""


def outcome(reason: str) -> str:
    """The prefix of the stage counter of `reason`: `refused`, `lost` or `discarded`."""
    if reason in LOST:
        return "lost"
    return "discarded" if reason in DISCARDED else "refused"


class Refusal(HeadraceError):
    """A message or request that changes nothing. `reason` is a code of registration.md 11, `detail` is for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.code = reason
        self.detail = detail
