"""`/v1/timelines/{t}/...`: which call a request is, and everything around a call. Sees no client library.

Segments are split before they are decoded, so `/` in an id works; the app hands over the path as it was sent.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headrace_api import bodies
from headrace_api.encoding import Encoded, compressed
from headrace_api.timelines import leases, lookups, messages, polling, whole
from headrace_api.timelines.answers import Reply, problem, refused
from headrace_api.timelines.asked import Asked, header_text, query, segments
from headrace_api.timelines.desk import Mail, Timeline, Timelines
from headrace_api.timelines.rates import Rates
from headrace_api.writing import patience
from headrace_core.registration.message import write_json
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import ABSENT
from headrace_core.timeline.refusals import Refused, bad_request

PREFIX = "/v1/timelines/"
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MOST_BYTES = 8 * 1024 * 1024
"""Of a request's body; a message's body has the limit of its timeline."""
MOST_OPEN = 2_000
LARGE = 64 * 1024
HEADERS = ("x-producer-group", "x-consumer-id", "idempotency-key", "if-match")
WITHOUT_BODY = frozenset({"GET", "HEAD"})

Call = Callable[[Timeline, Asked], Awaitable[Reply]]
ANY = None
POLL = "poll"
ROUTES: dict[tuple[str | None, ...], dict[str, Call | str]] = {
    (): {"GET": whole.show, "PUT": whole.configure, "DELETE": whole.drop},
    ("messages",): {"GET": lookups.messages, "POST": messages.create},
    ("messages:batch",): {"POST": messages.batch},
    ("messages", ANY): {"GET": messages.get, "PATCH": messages.move, "DELETE": messages.cancel},
    ("messages", ANY, "body"): {"GET": messages.get_body},
    ("messages", ANY, "lease"): {"POST": leases.lease},
    ("leases",): {"GET": leases.leases_of, "POST": POLL},
    ("leases:batch",): {"POST": leases.batch},
    ("leases", ANY): {"PATCH": leases.extend, "DELETE": leases.complete},
    ("leases", ANY, "release"): {"POST": leases.release},
    ("counts",): {"GET": lookups.counts},
    ("parked",): {"GET": lookups.parked},
    ("consumers", ANY): {"PUT": whole.subscribe, "DELETE": whole.unsubscribe},
    ("clock:ping",): {"POST": whole.ping},
}
"""The table of section 17."""


class Counts(Protocol):
    """What the handler tells of itself; in service the metrics."""

    def timeline_answered(self, call: str, status: int, seconds: float) -> None: ...

    def timeline_open(self, number: int) -> None: ...


class TimelineHandler:
    """All calls of all timelines; on the event loop."""

    def __init__(self, mail: Mail, counts: Counts) -> None:
        self._mail = mail
        self._counts = counts
        self._timelines = Timelines(mail)
        self._rates = Rates()
        self._closing = asyncio.Event()
        self._open = 0

    def close(self) -> None:
        """Withdraw waiting polls soon. On the event loop."""
        self._closing.set()

    def recovering(self) -> list[str]:
        """Partitions of timelines that do not answer, `<timeline>-<partition>`."""
        return self._timelines.silent.named(time.monotonic())

    async def answer(self, request: Request) -> Response:
        """One request; never raises what a client could cause."""
        started, label = time.monotonic(), "none"
        self._open += 1
        self._counts.timeline_open(self._open)
        try:
            name, found, allowed = _route(request.scope["path"])
            label = "/".join(part or "{}" for part in _pattern(found) or ())
            reply = await self._call(request, name, found, allowed)
        except Refused as error:
            reply = problem(refused(error.code, **error.details))
        except ClientDisconnect:
            reply = Reply(400)
        finally:
            self._open -= 1
            self._counts.timeline_open(self._open)
        if reply.status >= 400 and request.method not in WITHOUT_BODY:
            await bodies.drain(request)
        self._counts.timeline_answered(f"{request.method} /{label}", reply.status, time.monotonic() - started)
        return await _sent(reply, request.headers.get("accept-encoding", ""))

    async def _call(self, request: Request, name: str, found: tuple[str, ...], allowed: dict[str, Call | str]) -> Reply:
        methods = _methods(allowed)
        if request.method == "OPTIONS":
            return Reply(204, None, {"Allow": methods})
        call = allowed.get("GET" if request.method == "HEAD" else request.method)
        if call is None:
            refusal = problem(refused("METHOD_NOT_ALLOWED", f"{request.method} is not possible here"))
            return refusal._replace(headers={"Allow": methods})
        asked = await self._read(request, found)
        timeline = await self._timeline(name)
        client = asked.headers.get("x-consumer-id") or asked.headers.get("x-producer-group") or _peer(request)
        if not self._rates.may(name, client, timeline.settings.client_rate, time.monotonic()):
            raise Refused(
                "RATE_LIMITED", detail="more requests than a client may send", limit=timeline.settings.client_rate
            )
        if not isinstance(call, str):
            return await self._done(call(timeline, asked), request, name)
        leaving = asyncio.ensure_future(self._leaving(request))
        try:
            return await polling.poll(timeline, asked, leaving)
        finally:
            leaving.cancel()

    async def _done(self, answer: Awaitable[Reply], request: Request, name: str) -> Reply:
        reply = await answer
        if request.method == "PUT":
            self._timelines.forget(name)
        return reply

    async def _timeline(self, name: str) -> Timeline:
        """Raises Refused."""
        await patience(self._mail.starting)
        if self._open > MOST_OPEN:
            raise Refused("OVERLOADED", detail=f"{MOST_OPEN} requests are open", limit=MOST_OPEN)
        found = await self._timelines.find(name)
        if isinstance(found, Timeline):
            return found
        raise Refused(found["code"], **{k: v for k, v in found.items() if k not in ("ok", "code", "now")})

    async def _read(self, request: Request, found: tuple[str, ...]) -> Asked:
        """Raises Refused, ClientDisconnect."""
        headers = {name: header_text(request.headers[name]) for name in HEADERS if name in request.headers}
        parameters = query(request.scope["query_string"].decode())
        if request.method not in WITHOUT_BODY and parameters:
            raise bad_request("this call has no parameters")
        members = None if request.method in WITHOUT_BODY else await _members(request)
        return Asked(request.method, found, parameters, headers, members)

    async def _leaving(self, request: Request) -> None:
        """Until the client has gone, or the service ends."""
        waits = {asyncio.ensure_future(_gone(request)), asyncio.ensure_future(self._closing.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _members(request: Request) -> Any:
    """The JSON of the body, None without one. Raises Refused, ClientDisconnect."""
    try:
        bodies.check_head(request.headers, MOST_BYTES)
        raw = await bodies.received(request, MOST_BYTES)
        value = await asyncio.to_thread(_value, raw) if len(raw) > LARGE else _value(raw)
    except Refusal as error:
        if error.reason == "too_large":
            raise Refused("BODY_TOO_LARGE", detail=error.detail, limit=MOST_BYTES) from None
        raise bad_request(error.detail) from None
    return None if value is ABSENT else value


def _value(raw: bytes) -> Any:
    return bodies.read_body(raw, MOST_BYTES)


def _route(path: str) -> tuple[str, tuple[str, ...], dict[str, Call | str]]:
    """Timeline, segments behind it, and what may be done there. Raises Refused."""
    name, _, rest = path.removeprefix(PREFIX).partition("/")
    found = segments(rest) if rest else ()
    pattern = _pattern(found)
    if not NAME.fullmatch(name):
        raise Refused("UNKNOWN_TIMELINE", detail="a timeline's name has 1 to 64 letters, digits, _ and -")
    if pattern is None:
        raise Refused("NOT_FOUND", detail="there is no such call")
    return name, found, ROUTES[pattern]


def _pattern(found: tuple[str, ...]) -> tuple[str | None, ...] | None:
    for pattern in ROUTES:
        if len(pattern) == len(found) and all(
            part == seen if part is not None else seen for part, seen in zip(pattern, found, strict=True)
        ):
            return pattern
    return None


def _methods(allowed: dict[str, Any]) -> str:
    found = [*allowed, "OPTIONS"]
    return ", ".join(["GET", "HEAD", *(m for m in found if m != "GET")] if "GET" in allowed else found)


def _peer(request: Request) -> str:
    return request.client.host if request.client else ""


async def _sent(reply: Reply, accept: str) -> Response:
    body = None if reply.body is None else write_json(reply.body)
    headers = {"Cache-Control": "no-store", **reply.headers}
    encoded = Encoded(reply.status, headers, None if body is None else reply.media, body)
    if body is not None and len(body) > LARGE:
        encoded = await asyncio.to_thread(compressed, encoded, accept)
    return Response(encoded.body, encoded.status, encoded.headers, encoded.media)
