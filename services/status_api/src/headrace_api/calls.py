"""The calls of registration.md 12 and 13 over HTTP: reads, long polls, writes, streams. Sees no client library.

Queries run in threads of their own; the event loop stays free for whoever waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import NamedTuple, Protocol

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace_api import writing
from headrace_api.bodies import drain, received
from headrace_api.encoding import Encoded, encoded
from headrace_api.events import Events
from headrace_api.metrics import Metrics
from headrace_api.progress import PartitionProgress, Progress
from headrace_api.streaming import Stream
from headrace_api.wakeup import Wakeup
from headrace_core.registration import queries, routes
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.reasons import Refusal

log = structlog.get_logger(__name__)

QUERY_THREADS = 4
LONGEST_WAIT_S, MOST_WAITING, LOOK_S = 60, 200, 0.5


class Answers(Protocol):
    """What answers reads; in service a Reader on the replica."""

    def answer(self, request: routes.Request, progress: Progress, /) -> routes.Response: ...


class Source(NamedTuple):
    """The events, what is notified of new ones, and how far they are."""

    events: Events
    moved: Wakeup
    progress: Callable[[], Progress]


class Calls:
    """All calls; `progress` gives how far the replica is now, `moved` is notified when it has moved."""

    def __init__(
        self, config: RegistrationConfig, answers: Answers, progress: Callable[[], Progress], moved: Wakeup,
        writer: writing.Writer, source: Source, metrics: Metrics,
    ) -> None:  # fmt: skip
        self.threads = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="query")
        self.closing = False
        self._config = config
        self._answers = answers
        self._progress = progress
        self._moved = moved
        self._writer = writer
        self._source = source
        self._metrics = metrics
        self._waiting = 0

    def close(self) -> None:
        """End long polls and streams soon. On the event loop."""
        self.closing = True
        self._moved.notify()
        self._source.moved.notify()

    async def call(self, request: Request) -> Response:
        """Everything of registration.md 12 and 13, and everything that is not there."""
        path = request.scope["path"]
        try:
            if request.method == "OPTIONS":
                return self._options(path)
            if request.method in writing.METHODS:
                return await self._write(request)
            asked = _asked(request, "GET" if request.method == "HEAD" else request.method)
            found = routes.route(self._config, asked)
            return await (self._stream if found.resource == "events" else self._read)(request, asked)
        except Refusal as refusal:
            return respond(encoded(with_all_methods(writing.refused(refusal, path))))

    def _options(self, path: str) -> Response:
        """What may be done here, without CORS: pages of other origins stay out."""
        allowed = routes.METHODS[routes.route(self._config, routes.Request("GET", path)).resource]
        return Response(None, HTTPStatus.NO_CONTENT, {"Allow": allow(allowed)})

    async def _read(self, request: Request, asked: routes.Request) -> Response:
        seconds = _wait(request)
        seen = self._progress().partitions  # before the answer: what comes while it is made must wake the poll
        answer = await self._ask(asked)
        if answer.status == HTTPStatus.NOT_MODIFIED and seconds:
            self._enter()
            try:
                answer = await self._long_poll(request, asked, answer, seconds, seen)
            finally:
                self._leave()
        return respond(answer)

    async def _ask(self, asked: routes.Request) -> Encoded:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, self._answer, asked, self._progress())

    def _answer(self, asked: routes.Request, progress: Progress) -> Encoded:
        return encoded(self._answers.answer(asked, progress), asked.headers.get("accept-encoding", ""))

    def _enter(self) -> None:
        """One more open stream or long poll; each one leaves. Raises Refusal `too_many_streams`."""
        if self._waiting >= MOST_WAITING:
            raise Refusal("too_many_streams", f"{MOST_WAITING} are open")
        self._waiting += 1
        self._metrics.streams_open.set(self._waiting)

    def _leave(self) -> None:
        self._waiting -= 1
        self._metrics.streams_open.set(self._waiting)

    async def _long_poll(
        self, request: Request, asked: routes.Request, answer: Encoded, seconds: int,
        seen: tuple[PartitionProgress, ...],
    ) -> Encoded:  # fmt: skip
        """Ask again whenever the replica has moved, until the tag differs (registration.md 13)."""
        deadline = time.monotonic() + seconds
        while answer.status == HTTPStatus.NOT_MODIFIED and time.monotonic() < deadline and not self.closing:
            if self._progress().partitions != seen:
                seen = self._progress().partitions
                answer = await self._ask(asked)
                continue
            await self._moved.wait(min(LOOK_S, max(0.0, deadline - time.monotonic())))
            if await request.is_disconnected():
                break
        return answer

    async def _write(self, request: Request) -> Response:
        """A write is answered even if its client has gone: it happens all the same."""
        asked = _asked(request, request.method)
        found, path = None, request.scope["path"]
        try:
            found = await self._writer.check(request.method, path, asked.headers)
            raw = await received(request)
            answer = await self._writer.answer(found, asked, raw)
        except Refusal as refusal:
            answer = with_all_methods(writing.refused(refusal, path))
            await drain(request)
        except ClientDisconnect:
            return Response(None, HTTPStatus.BAD_REQUEST)
        resource = found.resource if found else "none"
        self._metrics.writes.labels(resource, request.method, str(answer.status)).inc()
        loop = asyncio.get_running_loop()
        return respond(await loop.run_in_executor(self.threads, encoded, answer))

    async def _stream(self, request: Request, asked: routes.Request) -> Response:
        tid, states = queries.events_asked(asked)
        await writing.patience(lambda: self._source.progress().starting)
        progress = self._source.progress()
        if not progress.ready:
            raise Refusal("not_ready", progress.why_not_ready)
        root = routes.route(self._config, asked).root
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return Response(None, 200, headers, "text/event-stream")
        last = asked.headers.get("last-event-id")
        stream = Stream(self._source.events, self._source.moved, lambda: self.closing, root, tid, states, last)
        self._enter()
        return Streamed(stream.lines(), headers, self._leave)


class Streamed(StreamingResponse):
    """An event stream; `ended` is called when it is over, however it ends."""

    def __init__(self, blocks: AsyncIterator[bytes], headers: dict[str, str], ended: Callable[[], None]) -> None:
        super().__init__(blocks, 200, headers, "text/event-stream")
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def respond(answer: Encoded) -> Response:
    """As the framework sends it."""
    return Response(answer.body, answer.status, answer.headers, answer.media)


def allow(methods: tuple[str, ...]) -> str:
    """The header `Allow`: HEAD and OPTIONS are answered wherever GET is."""
    return ", ".join([methods[0], "HEAD", *methods[1:], "OPTIONS"])


def with_all_methods(response: routes.Response) -> routes.Response:
    """A 405 names HEAD and OPTIONS, too."""
    methods = response.headers.get("Allow")
    if methods is None:
        return response
    named = {**response.headers, "Allow": allow(tuple(methods.split(", ")))}
    return routes.Response(response.status, named, response.body)


def _asked(request: Request, method: str) -> routes.Request:
    text = request.scope["query_string"].decode()
    path = request.scope["path"]
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return routes.Request(method, f"{path}?{text}" if text else path, headers)


def _wait(request: Request) -> int:
    """Seconds of a long poll, 0 if there is none. Raises Refusal `invalid_query`."""
    text = request.query_params.get("wait", "") if "/v1/registrations/" in request.scope["path"] else ""
    if text and not (text.isascii() and text.isdigit() and len(text) <= 2 and int(text) <= LONGEST_WAIT_S):
        raise Refusal("invalid_query", f"wait is 0 to {LONGEST_WAIT_S} seconds")
    return int(text or 0)
