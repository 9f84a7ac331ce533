"""Lists and counts over all partitions (sections 10, 17).

| call | commands |
|---|---|
| `GET /messages`, `GET /parked` | list, one partition after the other |
| `GET /counts` | count, or histogram with `step`, in every partition |

A cursor is a partition and the engine's own cursor in it: what does not move in between appears exactly once.
"""

from __future__ import annotations

import time
from typing import Any

from headrace_api.timelines import tokens
from headrace_api.timelines.answers import Reply, reply
from headrace_api.timelines.asked import Asked, numbers
from headrace_api.timelines.desk import REPLY_S, Command, Timeline
from headrace_api.timelines.together import together
from headrace_core.timeline.queries import MAX_PAGE
from headrace_core.timeline.refusals import bad_request

DEFAULT_PAGE = 100


async def messages(timeline: Timeline, asked: Asked) -> Reply:
    """A page of messages."""
    found = asked.parameters("group", "status", "from", "to", "limit", "cursor")
    return await _page(timeline, numbers(found, "from", "to", "limit"))


async def parked(timeline: Timeline, asked: Asked) -> Reply:
    """A page of parked messages, by partition in the order of parking."""
    found = numbers(asked.parameters("limit", "cursor"), "limit")
    return await _page(timeline, {**found, "status": "parked"})


async def _page(timeline: Timeline, args: dict[str, Any]) -> Reply:
    limit, text = args.pop("limit", DEFAULT_PAGE), args.pop("cursor", None)
    if not 1 <= limit <= MAX_PAGE:
        raise bad_request(f"limit: 1 to {MAX_PAGE}")
    filters = tokens.digest(args)
    place = tokens.Cursor(0, None, filters) if text is None else _cursor(text, timeline.partitions, filters)
    number, after, items, answers = place.partition, place.after, list[Any](), list[Any]()
    deadline = time.monotonic() + REPLY_S
    while number < timeline.partitions and len(items) < limit:
        asks = {**args, "limit": limit - len(items)} | ({} if after is None else {"cursor": after})
        answer = await timeline.ask(Command("list", asks, number), deadline - time.monotonic())
        answers.append(answer)
        if not answer["ok"]:
            break
        items += answer["items"]
        after = answer["next_cursor"]
        number += int(after is None)
    answer, _ = together(answers)
    more = number < timeline.partitions
    cursor = tokens.written(tokens.Cursor(number, after, filters)) if more else None
    return reply(answer, 200, {"items": items, "next_cursor": cursor})


def _cursor(text: str, partitions: int, filters: str) -> tokens.Cursor:
    found = tokens.read(text, tokens.Cursor, "cursor")
    if found.filters != filters:
        raise bad_request("cursor: of another list")
    if not 0 <= found.partition < partitions:
        raise bad_request("cursor: not one of ours")
    return found


async def counts(timeline: Timeline, asked: Asked) -> Reply:
    """Live messages in a range; with `step` by slots."""
    args = numbers(asked.parameters("from", "to", "status", "step"), "from", "to", "step")
    answer, answers = together(await timeline.everywhere("histogram" if "step" in args else "count", args))
    if not answer["ok"]:
        return reply(answer, 200)
    body: dict[str, Any] = {"total": sum(one["total"] for one in answers)}
    if "step" in args:
        body["slots"] = [sum(slot) for slot in zip(*(one["slots"] for one in answers), strict=True)]
    return reply(answer, 200, body)
