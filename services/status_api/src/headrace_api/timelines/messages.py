"""What owners do (section 17): create, read, move and cancel messages, one or many at once.

| call | commands |
|---|---|
| `POST /messages` | create |
| `POST /messages:batch` | one for each item, written in list order |
| `GET /messages/{id}`, `/messages/{id}/body` | get, read_body |
| `PATCH`, `DELETE /messages/{id}` | move, cancel |
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from headrace_api.timelines.answers import Answer, Reply, refused, reply, result
from headrace_api.timelines.asked import Asked, Members, content, members, with_version
from headrace_api.timelines.desk import Command, Timeline
from headrace_api.timelines.tokens import Maker
from headrace_core.timeline.refusals import Refused, bad_request

MOST_ITEMS = 500
CREATE = ("id", "timestamp", "delay_ms", "body", "body_base64", "headers")
TIMES = ("timestamp", "delay_ms")
ITEM = {
    "create": CREATE,
    "move": ("id", *TIMES, "version"),
    "cancel": ("id", "version"),
}
"""Members of a batch's items, beside `op` and `request_id`."""


async def create(timeline: Timeline, asked: Asked) -> Reply:
    """201 with the new message; 200 if this request has made it already (8.2)."""
    command = creation(timeline, asked.body(*CREATE), asked.group, asked.key, asked.request_id)
    answer = await timeline.ask(command)
    id_ = command.args["id"]
    body = {name: answer.get(name) for name in ("id", "version", "timestamp", "bucket", "status")}
    place = {"Location": f"/v1/timelines/{timeline.name}/messages/{quote(id_, safe='')}"} if answer["ok"] else {}
    return reply(answer, 200 if answer.get("replayed") else 201, body, **place)


def creation(timeline: Timeline, found: Members, group: str, key: str | None, request_id: str) -> Command:
    """The command; an id that the client has not given is made (8.4). Raises Refused."""
    body = content(found)
    if "id" not in found:
        found["id"] = Maker(timeline.name).make(group, key)
    return keyed(timeline, "create", {**found, "group": group}, request_id, body)


def keyed(timeline: Timeline, op: str, args: Members, request_id: str | None, body: bytes = b"") -> Command:
    """A command on one message. Raises Refused BAD_REQUEST for an id that cannot be a key."""
    id_ = args.get("id")
    if not isinstance(id_, str) or not id_:
        raise bad_request("id: a text that is not empty")
    return Command(op, args, timeline.home(id_), id_, body, request_id)


async def get(timeline: Timeline, asked: Asked) -> Reply:
    """All fields without the body."""
    asked.parameters()
    answer = await timeline.ask(keyed(timeline, "get", {"id": asked.segments[1]}, None))
    return reply(answer, 200, shown(answer))


def shown(answer: Answer) -> dict[str, Any]:
    """An answer without what is about the answer itself."""
    return {name: value for name, value in answer.items() if name not in ("ok", "now", "emitted", "served", "replayed")}


async def get_body(timeline: Timeline, asked: Asked) -> Reply:
    """`body` or `body_base64`, for the owner and the holder (section 7)."""
    asked.parameters()
    args = {"id": asked.segments[1], "group": asked.headers.get("x-producer-group"),
            "consumer": asked.headers.get("x-consumer-id")}  # fmt: skip
    answer = await timeline.ask(keyed(timeline, "read_body", args, None))
    return reply(answer, 200, shown(answer))


async def move(timeline: Timeline, asked: Asked) -> Reply:
    """Another time."""
    args = {**asked.body(*TIMES), "id": asked.segments[1], "group": asked.group}
    answer = await timeline.ask(keyed(timeline, "move", with_version(args, asked.version), asked.request_id))
    return reply(answer, 200, {"id": asked.segments[1], **shown(answer)})


async def cancel(timeline: Timeline, asked: Asked) -> Reply:
    """Gone; also if it was gone already by this group."""
    asked.body()
    args = with_version({"id": asked.segments[1], "group": asked.group}, asked.version)
    return reply(await timeline.ask(keyed(timeline, "cancel", args, asked.request_id)), 204)


async def batch(timeline: Timeline, asked: Asked) -> Reply:
    """Answers per item; one bad item never fails another (section 5)."""
    group = asked.group

    def command(item: Members, op: str, key: str | None, request_id: str) -> Command:
        if op == "create":
            return creation(timeline, item, group, key, request_id)
        return keyed(timeline, op, {**item, "group": group}, request_id)

    async def one(number: int, item: Any) -> dict[str, Any]:
        return await item_result(timeline, asked, number, item, ITEM, command)

    return await in_order(asked, one)


async def in_order(asked: Asked, one: Any) -> Reply:
    """All items at once, written in list order: each task writes its record before it waits."""
    items = asked.body("items").get("items")
    if not isinstance(items, list) or not 1 <= len(items) <= MOST_ITEMS:
        raise Refused("BAD_REQUEST", detail=f"items: a list of 1 to {MOST_ITEMS}", limit=MOST_ITEMS)
    results = await asyncio.gather(*(one(number, item) for number, item in enumerate(items)))
    nows = [now for found in results if (now := found.pop("now", None)) is not None]
    return Reply(200, {"results": results}, {"X-Timeline-Now": str(max(nows))} if nows else {})


async def item_result(
    timeline: Timeline, asked: Asked, number: int, item: Any, allowed: dict[str, tuple[str, ...]], command: Any
) -> dict[str, Any]:
    """One item: its own request id, or one made of the batch's (section 21: retries repeat nothing)."""
    known = {
        name: item[name] for name in ("id", "lease_id") if isinstance(item, dict) and isinstance(item.get(name), str)
    }
    try:
        op = item.get("op") if isinstance(item, dict) else None
        if not isinstance(op, str) or op not in allowed:
            raise bad_request(f"op: one of {', '.join(allowed)}")
        found = members(item, ("op", "request_id", *allowed[op]))
        del found["op"]
        key = found.pop("request_id", None) or (f"{asked.key}/{number}" if asked.key else None)
        if key is not None and not isinstance(key, str):
            raise bad_request("request_id: a text")
        made = command(found, op, key, key or asked.request_id)
    except Refused as error:
        return result(refused(error.code, **error.details), **known)
    answer = await timeline.ask(made)
    found = result(answer, **({"id": made.id} | known))
    return found | ({"now": answer["now"]} if "now" in answer else {})
