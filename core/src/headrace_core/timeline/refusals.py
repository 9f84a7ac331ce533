"""Refusals: a code of timeline.md 17 and its details (section 5). A refused operation changes nothing."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """An operation is refused. Raised before its first write, never after."""

    def __init__(self, code: str, **details: Any) -> None:
        super().__init__(code)
        self.code = code
        self.details = details

    def answer(self) -> dict[str, Any]:
        return {"ok": False, "code": self.code, **self.details}


def bad_request(detail: str) -> Refused:
    """The shape check of timeline.md 5 failed."""
    return Refused("BAD_REQUEST", detail=detail)


NOT_FOUND = "NOT_FOUND"
