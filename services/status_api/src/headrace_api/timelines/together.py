"""Answers of several partitions as one: the largest NOW, and the first refusal if there is any."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_api.timelines.answers import Answer

WORST = ("UNKNOWN_OUTCOME", "LOG_UNAVAILABLE")


def together(answers: Sequence[Answer]) -> tuple[Answer, Sequence[Answer]]:
    """What to say of all, and the answers themselves; a refusal of the engine goes before an answer that is missing."""
    nows = [answer["now"] for answer in answers if "now" in answer]
    now = {"now": max(nows)} if nows else {}
    bad = [answer for answer in answers if not answer["ok"]]
    if bad:
        return min(bad, key=lambda answer: answer["code"] in WORST) | now, answers
    return {"ok": True, **now}, answers
