"""Reasons: the class of each (registration.md 11) and its HTTP status; `Refusal` carries one to where it is answered.

Class R (refused) and L (lost) leave one dead letter a message, class D (discarded) none; all are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace_core.errors import HeadraceError


class Reason(NamedTuple):
    """A row of the table of section 11. `kind`: R, L, D, or None for HTTP only; `http`: a status, or None for none."""

    kind: str | None
    http: int | None


TABLE: Mapping[str, Reason] = {
    "invalid_topic": Reason("R", None),
    "unknown_channel": Reason("R", None),
    "invalid_topic_id": Reason("R", 400),
    "invalid_payload": Reason("R", 400),
    "invalid_type": Reason("R", 400),
    "invalid_id": Reason("R", 400),
    "invalid_twin_key": Reason("R", 400),
    "missing_type": Reason("R", 422),
    "missing_topic_id": Reason("R", 422),
    "invalid_parent": Reason("R", 400),
    "no_parent": Reason("R", 400),
    "invalid_health": Reason("R", 400),
    "type_change": Reason("R", 400),
    "id_change": Reason("R", 400),
    "main_protected": Reason("R", 400),
    "id_in_use": Reason("R", 409),
    "exists": Reason("R", 409),
    "metadata_full": Reason("L", None),
    "too_large": Reason("L", 413),
    "evicted": Reason("L", None),
    "expired": Reason("L", None),
    "unregistered_signal": Reason("L", None),
    "cancelled": Reason("D", None),
    "clear_of_unknown": Reason("D", None),
    "unknown_field": Reason(None, 400),
    "invalid_query": Reason(None, 400),
    "invalid_cursor": Reason(None, 400),
    "not_found": Reason(None, 404),
    "method_not_allowed": Reason(None, 405),
    "unsupported_media_type": Reason(None, 415),
    "precondition_failed": Reason(None, 412),
    "too_many_streams": Reason(None, 429),
    "not_ready": Reason(None, 503),
    "timeout": Reason(None, 504),
}
LOST = frozenset(name for name, row in TABLE.items() if row.kind == "L")
DISCARDED = frozenset(name for name, row in TABLE.items() if row.kind == "D")
HTTP_STATUS = {name: row.http for name, row in TABLE.items() if row.http is not None}
"""Status of each reason that an answer can have."""
OUTCOMES = {"R": "refused", "L": "lost", "D": "discarded"}


def outcome(reason: str) -> str:
    """The prefix of the stage counter of a message's `reason`: `refused`, `lost` or `discarded`."""
    kind = TABLE[reason].kind
    assert kind is not None, f"{reason} is an answer, no message ends with it"
    return OUTCOMES[kind]


class Refusal(HeadraceError):
    """A message or request that changes nothing. `reason` is a code of registration.md 11, `detail` is for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.code = reason
        self.detail = detail
