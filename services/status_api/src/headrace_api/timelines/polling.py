"""Polls (timeline.md 9.3 to 9.6): over all partitions, or those of the asked buckets.

    ask one partition after the other, from a rotating start, for the number still missing
      -> something was granted: answer
      -> all are empty, and `wait_ms`: a waiter in each
           -> one brings something: withdraw the others, take what they grant before that, hand the surplus back
           -> the time is over, the client has gone, or the service ends: withdraw all

With an `Idempotency-Key` the start is murmur2 of the key, and what is kept of a surplus depends on the grants alone: so
a repeat asks the same and says the same. A grant that no consumer sees is handed back (`give_back`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

from headrace_api.timelines.answers import Answer, Reply, refused, reply
from headrace_api.timelines.asked import Asked, Members
from headrace_api.timelines.desk import NO_REPLY, REPLY_S, Command, Timeline
from headrace_api.timelines.leases import lease_shown
from headrace_api.timelines.messages import keyed
from headrace_api.writing import NotSent
from headrace_core.partitioner import murmur2
from headrace_core.timeline import shape
from headrace_core.timeline.polls import MAX_BODIES
from headrace_core.timeline.refusals import bad_request

DEFAULT_LIMIT = 10
APART = "\x1f"
"""In a request id made of another one; no header can have it."""
UNKNOWN = "UNKNOWN_OUTCOME"
PASSING = frozenset({"DEGRADED", "OVERLOADED", "FROZEN", "LOG_UNAVAILABLE", UNKNOWN})
"""Refusals of one partition that say nothing about another one."""
STARTS = itertools.count()

Leaving = asyncio.Future[Any]
"""Done when nobody waits for the answer any more."""


async def poll(timeline: Timeline, asked: Asked, leaving: Leaving) -> Reply:
    """200 with leases, 204 without."""
    found = asked.body("limit", "lease_ms", "expires_at", "wait_ms", "buckets")
    settings = timeline.settings
    limit = shape.optional_number(found, "limit", 1, settings.max_poll) or DEFAULT_LIMIT
    wait_ms = shape.optional_number(found, "wait_ms", 0, settings.max_wait_ms)
    if wait_ms is not None and "lease_ms" not in found:
        raise bad_request("wait_ms: only with lease_ms")
    buckets = shape.buckets(found, settings.bucket_count)
    args: Members = {name: found[name] for name in ("lease_ms", "expires_at", "buckets") if name in found}
    one = Poll(timeline, {"consumer": asked.consumer, **args}, min(limit, settings.max_poll), asked.request_id)
    return await one.run(order(timeline.partitions, buckets, asked.key), wait_ms or 0, leaving)


def order(partitions: int, buckets: list[int] | None, key: str | None) -> list[int]:
    """The partitions to ask, in order (9.4)."""
    found = sorted({bucket % partitions for bucket in buckets} if buckets else range(partitions))
    start = (next(STARTS) if key is None else murmur2(key.encode())) % len(found)
    return found[start:] + found[:start]


class Waiter:
    """A waiting poll in one partition. Its first reply says its number, the last one brings leases or none."""

    def __init__(self, timeline: Timeline, command: Command) -> None:
        self._timeline, self._command = timeline, command
        self._number, self._withdrawn = 0, False

    async def run(self, seconds: float) -> Answer:
        """Its answer, within `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            with self._timeline.post(self._command) as sent:
                while (answer := await sent.next(deadline)).get("waiting"):  # more than once, after a restart
                    self._number = answer["waiter"]
                    if self._withdrawn:
                        await self._unwait()
                return answer
        except NotSent as error:
            return refused("LOG_UNAVAILABLE", str(error))

    async def withdraw(self) -> None:
        """Its answer comes soon now: what it was granted before, or nothing."""
        self._withdrawn = True
        if self._number:
            await self._unwait()

    async def _unwait(self) -> None:
        await self._timeline.ask(Command("unwait", {"waiter": self._number}, self._command.partition))


class Poll:
    """One poll, and what has come of it so far."""

    def __init__(self, timeline: Timeline, args: Members, limit: int, request_id: str) -> None:
        self._timeline, self._args, self._limit, self._request_id = timeline, args, limit, request_id
        self._grants: list[Members] = []
        self._refused: list[Answer] = []
        self._said: Answer = {"ok": True}
        self._more = False
        self._asked = 0

    async def run(self, places: list[int], wait_ms: int, leaving: Leaving) -> Reply:
        """Both rounds; a single partition needs only one of them."""
        if not wait_ms or len(places) > 1:
            await self._ask_each(places)
        if wait_ms and not self._grants and self._may_go_on:
            await self._wait(places, wait_ms, leaving)
        if leaving.done():
            await self._give_back(self._grants)
            return reply(self._said, 204)
        return await self._answer()

    @property
    def _may_go_on(self) -> bool:
        return all(answer["code"] in PASSING for answer in self._refused)

    async def _ask_each(self, places: list[int]) -> None:
        deadline = time.monotonic() + REPLY_S
        for number in places:
            missing = self._limit - len(self._grants)
            if not missing:
                self._more = True  # there may be more in those that were not asked
                return
            command = Command("poll", {**self._args, "limit": missing}, number, request_id=self._request_id)
            self._take(await self._timeline.ask(command, deadline - time.monotonic()))
            if not self._may_go_on:
                return

    async def _wait(self, places: list[int], wait_ms: int, leaving: Leaving) -> None:
        self._refused = []
        args = {**self._args, "limit": max(1, self._limit // len(places)), "wait_ms": wait_ms}
        id_ = self._request_id + APART
        waiters = [Waiter(self._timeline, Command("poll", args, place, request_id=id_)) for place in places]
        tasks = {asyncio.create_task(one.run(wait_ms / 1000 + REPLY_S)): one for one in waiters}
        open_ = set(tasks)
        while open_ and not self._grants and not leaving.done():
            await asyncio.wait({*open_, leaving}, return_when=asyncio.FIRST_COMPLETED)
            open_ -= self._take_done(open_)
        if open_:
            await asyncio.gather(*(tasks[task].withdraw() for task in open_))
            await asyncio.wait(open_, timeout=REPLY_S)
            open_ -= self._take_done(open_)
        for task in open_:
            task.cancel()
            self._take(refused(UNKNOWN, NO_REPLY))

    def _take_done(self, tasks: set[asyncio.Task[Answer]]) -> set[asyncio.Task[Answer]]:
        done = {task for task in tasks if task.done()}
        for task in done:
            self._take(task.result())
        return done

    def _take(self, answer: Answer) -> None:
        """What one partition has said."""
        self._asked += 1
        if "now" in answer:
            self._said["now"] = max(answer["now"], self._said.get("now", 0))
        if not answer["ok"]:
            self._refused.append(answer)
            return
        self._grants += answer["leases"]
        self._more = self._more or answer["has_more"]
        if answer.get("replayed"):
            self._said["replayed"] = True

    async def _answer(self) -> Reply:
        grants = sorted(self._grants, key=lambda lease: (lease["due_at"], lease["id"].encode()))
        kept, surplus = grants[: self._limit], grants[self._limit :]
        await self._give_back(surplus)
        if kept:
            leases = [lease_shown(self._timeline, lease) for lease in fitting(kept)]
            return reply(self._said, 200, {"leases": leases, "has_more": self._more or bool(surplus)})
        worst = [answer for answer in self._refused if answer["code"] not in PASSING or answer["code"] == UNKNOWN]
        if worst or (self._refused and len(self._refused) == self._asked):
            return reply((worst or self._refused)[0] | {k: v for k, v in self._said.items() if k != "ok"}, 204)
        return reply(self._said, 204)

    async def _give_back(self, grants: list[Members]) -> None:
        """Nobody has seen these (section 5, give_back); one that fails lapses after its lease time."""
        consumer = self._args["consumer"]
        await self._timeline.ask_all(
            keyed(
                self._timeline, "give_back",
                {"id": lease["id"], "consumer": consumer, "version": lease["version"]},
                f"{self._request_id}{APART}{lease['version']}",
            )
            for lease in grants
        )  # fmt: skip


def fitting(leases: list[Members]) -> list[Members]:
    """Bodies up to 900 KB in sum; the rest are read one by one (9.6)."""
    left, found = MAX_BODIES, []
    for lease in leases:
        size = len(lease.get("body", "").encode()) + len(lease.get("body_base64", "")) * 3 // 4
        if size > left:
            lease = {name: one for name, one in lease.items() if name not in ("body", "body_base64")}
            found.append(lease | {"body_omitted": True})
        else:
            left -= size
            found.append(lease)
    return found
