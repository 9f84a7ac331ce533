"""Calls on a timeline as a whole (section 17): settings, drop, subscriptions, and the clock.

| call | commands |
|---|---|
| `GET /` | describe, in every partition |
| `PUT /` | configure: partition 0 first, whose refusal is that of all, and who knows whether it was the first one |
| `DELETE /` | freeze everywhere; if one refuses unfreeze, else drop (section 5) |
| `PUT`, `DELETE /consumers/{id}` | subscribe, unsubscribe, in partition 0 |
| `POST /clock:ping` | describe, for NOW |

A timeline needs a worker with its stage, so which ones there are is the deployment's to say
(`HEADRACE_STREAMS_TIMELINES`), and with which settings they begin. The first `PUT` creates one in its log: from there
on its settings are what the log says, whatever a deployment says later.
"""

from __future__ import annotations

import asyncio
import time

from headrace_api.timelines.answers import Reply, reply
from headrace_api.timelines.asked import Asked
from headrace_api.timelines.desk import Command, Timeline
from headrace_api.timelines.together import together
from headrace_core.timeline import shape
from headrace_core.timeline.refusals import bad_request

STATE = ("now", "degraded", "frozen", "code")
"""What is shown of a partition: how it is, or the code that says why that is not known."""


async def show(timeline: Timeline, asked: Asked) -> Reply:
    """Settings in force, and the state of each partition with its owner; of one that recovers, why there is none."""
    asked.parameters()
    answers, owners = await asyncio.gather(timeline.everywhere("describe", {}), timeline.owners())
    answer, _ = together([one for one in answers if one["ok"]] or answers)
    partitions = [
        {"partition": number, "owner": owners.get(number), **{name: one[name] for name in STATE if name in one}}
        for number, one in enumerate(answers)
    ]
    settings = next((one["settings"] for one in answers if one["ok"]), None)
    return reply(answer, 200, {"name": timeline.name, "settings": settings, "partitions": partitions})


async def configure(timeline: Timeline, asked: Asked) -> Reply:
    """Change settings; those that are not named stay. May be repeated. 201: the log had none before."""
    if not isinstance(asked.members, dict):
        raise bad_request("the body is a JSON object of settings")
    args = {"settings": asked.members}
    first = await timeline.ask(Command("configure", args, 0))
    if not first["ok"]:
        return reply(first, 200)
    others = [Command("configure", args, number) for number in range(1, timeline.partitions)]
    answer, _ = together([first, *await timeline.ask_all(others)])
    shown = {"name": timeline.name, "settings": first["settings"]}
    if not first.get("created"):
        return reply(answer, 200, shown)
    return reply(answer, 201, shown, Location=f"/v1/timelines/{timeline.name}")


async def drop(timeline: Timeline, asked: Asked) -> Reply:
    """All its messages are gone; the timeline is there, empty. Refused while a lease is active."""
    asked.body()
    answer, answers = together(await timeline.everywhere("freeze", {}))
    if not answer["ok"]:
        await timeline.everywhere("unfreeze", {})
        ids = sorted((id_ for one in answers for id_ in one.get("ids", ())), key=str.encode)
        return reply(answer | ({"ids": ids} if answer["code"] == "LEASE_ACTIVE" else {}), 204)
    answer, _ = together(await timeline.everywhere("drop", {}))
    return reply(answer, 204)


async def subscribe(timeline: Timeline, asked: Asked) -> Reply:
    """Subscribe, or keep alive with the token (9.5)."""
    args = {**asked.body("token"), "consumer": asked.segments[1]}
    answer = await timeline.ask(Command("subscribe", args, 0))
    return reply(answer, 200, {name: answer.get(name) for name in ("token", "buckets")})


async def unsubscribe(timeline: Timeline, asked: Asked) -> Reply:
    """The buckets are dealt to the others."""
    asked.body()
    return reply(await timeline.ask(Command("unsubscribe", {"consumer": asked.segments[1]}, 0)), 204)


async def ping(timeline: Timeline, asked: Asked) -> Reply:
    """Times for an estimate of the clocks' difference (12.1): sent, received, answered; and NOW of the log."""
    received_ms = wall_ms()
    sent_ms = shape.number(asked.body("t0"), "t0")
    answer = await timeline.ask(Command("describe", {}, 0))
    return reply(answer, 200, {"t0": sent_ms, "t1": received_ms, "t2": wall_ms(), "now": answer.get("now")})


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
