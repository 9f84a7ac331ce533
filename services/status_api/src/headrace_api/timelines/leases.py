"""What holders do (section 17): lease one message, extend, release, complete, by lease id.

| call | commands |
|---|---|
| `POST /messages/{id}/lease` | lease |
| `GET /leases` | leases_of, in every partition |
| `PATCH /leases/{lease_id}` | extend |
| `POST /leases/{lease_id}/release` | release |
| `DELETE /leases/{lease_id}` | complete |
| `POST /leases:batch` | one for each item, written in list order |

A lease id carries the version of its grant, so a call by it never touches a later lease (6.5).
"""

from __future__ import annotations

from typing import Any

from headrace_api.timelines import tokens
from headrace_api.timelines.answers import Reply, reply
from headrace_api.timelines.asked import Asked, Members, with_version
from headrace_api.timelines.desk import Command, Timeline
from headrace_api.timelines.messages import in_order, item_result, keyed, shown
from headrace_api.timelines.together import together
from headrace_core.timeline.refusals import bad_request

TIMES = {"extend": ("lease_ms", "expires_at"), "release": ("delay_ms", "timestamp"), "complete": ()}
ITEM = {op: ("lease_id", *times) for op, times in TIMES.items()}


def lease_id(timeline: Timeline, lease: Members, version: int) -> str:
    """The lease id of a grant of this `version`."""
    return tokens.written(tokens.Lease(timeline.home(lease["id"]), lease["id"], version))


def lease_shown(timeline: Timeline, lease: Members) -> Members:
    """A lease as the consumer sees it."""
    version = lease.pop("lease_version", lease["version"])
    return {"lease_id": lease_id(timeline, lease, version), **lease}


async def lease(timeline: Timeline, asked: Asked) -> Reply:
    """One message by its id, with its body."""
    args = {**asked.body("lease_ms", "expires_at", "version"), "id": asked.segments[1], "consumer": asked.consumer}
    answer = await timeline.ask(keyed(timeline, "lease", with_version(args, asked.version), asked.request_id))
    return reply(answer, 200, lease_shown(timeline, shown(answer)) if answer["ok"] else None)


async def leases_of(timeline: Timeline, asked: Asked) -> Reply:
    """Active leases of the consumer by (expiry, id), for one that was restarted."""
    asked.parameters()
    answer, answers = together(await timeline.everywhere("leases_of", {"consumer": asked.consumer}))
    found = [lease_shown(timeline, one) for each in answers for one in each.get("leases", ())]
    found.sort(key=lambda one: (one["expires_at"], one["id"].encode()))
    return reply(answer, 200, {"leases": [one | {"body_omitted": True} for one in found]})


def command(timeline: Timeline, op: str, found: Members, consumer: str, text: Any, request_id: str) -> Command:
    """A holder's command. Raises Refused BAD_REQUEST."""
    if not isinstance(text, str):
        raise bad_request("lease_id: a text")
    held = tokens.lease_id(text, timeline.partitions)
    if timeline.home(held.id) != held.partition:
        raise bad_request("lease_id: not one of this timeline")
    return keyed(timeline, op, {**found, "id": held.id, "consumer": consumer, "version": held.version}, request_id)


async def _by_lease_id(timeline: Timeline, asked: Asked, op: str) -> tuple[Any, Command]:
    if asked.version is not None:
        raise bad_request("If-Match: the lease id carries the version here")
    found = asked.body(*TIMES[op])
    made = command(timeline, op, found, asked.consumer, asked.segments[1], asked.request_id)
    return await timeline.ask(made), made


async def extend(timeline: Timeline, asked: Asked) -> Reply:
    """Another expiry; the lease id stays."""
    answer, made = await _by_lease_id(timeline, asked, "extend")
    return reply(answer, 200, {"lease_id": asked.segments[1], "id": made.id, **shown(answer)})


async def release(timeline: Timeline, asked: Asked) -> Reply:
    """Back into the future, for anyone."""
    answer, made = await _by_lease_id(timeline, asked, "release")
    return reply(answer, 200, {"id": made.id, **shown(answer)})


async def complete(timeline: Timeline, asked: Asked) -> Reply:
    """Done; also if this consumer has completed it already."""
    answer, _ = await _by_lease_id(timeline, asked, "complete")
    return reply(answer, 204)


async def batch(timeline: Timeline, asked: Asked) -> Reply:
    """Answers per item."""
    consumer = asked.consumer

    def made(item: Members, op: str, _key: str | None, request_id: str) -> Command:
        return command(timeline, op, item, consumer, item.pop("lease_id", None), request_id)

    async def one(number: int, item: Any) -> dict[str, Any]:
        return await item_result(timeline, asked, number, item, ITEM, made)

    return await in_order(asked, one)
