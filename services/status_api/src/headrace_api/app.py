"""The HTTP application: raw ASGI requests to handlers. Decides nothing and sees no client library.

Paths are matched undecoded: `RawPath` puts the path as sent where the framework expects a decoded one, so an encoded
slash stays within its segment (registration.md 12). Every answer that is not a success is a problem document.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import FastAPI
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_api import openapi, page, problems
from headrace_api.calls import Answers, Calls, respond
from headrace_api.capacity import PREFIX, CapacityHandler
from headrace_api.encoding import Encoded, compressed
from headrace_api.metrics import Metrics
from headrace_api.situation import Situation
from headrace_api.timelines.handler import PREFIX as TIMELINES
from headrace_api.timelines.handler import TimelineHandler
from headrace_core.registration.message import write_json
from headrace_core.registration.reasons import Refusal

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
READS = ["GET", "HEAD"]
PLAIN = frozenset(range(0x21, 0x7F)) - frozenset(b'"<>\\^`{|}')
KNOWN_METHODS = frozenset(METHODS)
DOCUMENT = write_json(openapi.DOCUMENT)


class RawPath:
    """ASGI: the framework sees the path and query as sent, with everything percent-encoded that has to be."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = encoded(scope.get("raw_path") or scope["path"].encode())
            if not path.startswith("/"):
                path = "/" + path.partition("://")[2].partition("/")[2]  # absolute form, RFC 9112 3.2.2
            query = encoded(scope["query_string"])
            scope = {**scope, "path": path, "root_path": "", "raw_path": path.encode(), "query_string": query.encode()}
        await self._app(scope, receive, send)


def encoded(raw: bytes) -> str:
    """The bytes of a path or query as ASCII that is safe in a header; what is encoded already stays."""
    return "".join(chr(byte) if byte in PLAIN else f"%{byte:02X}" for byte in raw)


class Handlers:
    """What is beside the calls: health, metrics, the document, the page, the shared capacity, timelines."""

    def __init__(
        self, calls: Calls, answers: Answers, situation: Situation, capacity: CapacityHandler,
        timelines: TimelineHandler, metrics: Metrics,
    ) -> None:  # fmt: skip
        self.calls = calls
        self.capacity = capacity
        self.timelines = timelines
        self._answers = answers
        self._situation = situation
        self._metrics = metrics

    async def healthz(self, request: Request) -> Response:
        """200 while everything that runs in threads makes progress."""
        trouble = self._situation.trouble(time.monotonic())
        if trouble:
            return problems.problem(503, "stalled", trouble, request.scope["path"])
        return _json({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """200 after the replica has caught up with the ends at start; writes and events may come a little later."""
        now = self._situation.progress()
        more = {
            "writes": not self._situation.no_writes(), "events": not self._situation.no_events(),
            "lag": {str(n): p.lag for n, p in enumerate(now.partitions)}, "recovering": self.timelines.recovering(),
        }  # fmt: skip
        if now.ready:
            return _json({"ready": True} | more)
        return problems.not_ready(now.why_not_ready, request.scope["path"], ready=False, **more)

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        await self.capacity.refresh()
        media = "text/plain; version=0.0.4; charset=utf-8"
        return await self._sent(request, Encoded(200, NO_STORE, media, generate_latest(self._metrics.registry)))

    async def document(self, request: Request) -> Response:
        """The OpenAPI document."""
        return await self._sent(request, Encoded(200, NO_CACHE, "application/json", DOCUMENT))

    async def page(self, request: Request) -> Response:
        """Who is registered and who is not, for people."""
        text = request.scope["query_string"].decode()
        loop = asyncio.get_running_loop()
        progress, reason = self._situation.progress(), self._situation.why_not_ready
        try:
            html = await loop.run_in_executor(
                self.calls.threads, page.page, lambda asked: self._answers.answer(asked, progress), text, reason
            )
        except Refusal as refusal:
            return problems.problem(404, refusal.reason, refusal.detail, "/")
        return await self._sent(request, Encoded(200, page.HEADERS, page.MEDIA_TYPE, html.encode()))

    async def _sent(self, request: Request, answer: Encoded) -> Response:
        accept = request.headers.get("accept-encoding", "")
        return respond(await asyncio.to_thread(compressed, answer, accept))


NO_STORE, NO_CACHE = {"Cache-Control": "no-store"}, {"Cache-Control": "no-cache"}


def _json(body: Any, status: int = 200) -> Response:
    return Response(write_json(body), status, NO_STORE, "application/json")


def build(handlers: Handlers, metrics: Metrics) -> ASGIApp:
    """The application."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for path, handler in {
        "/": handlers.page, "/healthz": handlers.healthz, "/readyz": handlers.readyz, "/metrics": handlers.metrics,
        "/openapi.json": handlers.document, f"{PREFIX}{{resource:path}}": handlers.capacity.answer,
    }.items():  # fmt: skip
        app.add_route(path, handler, READS)
        app.add_route(path, _options, ["OPTIONS"])
        app.add_route(path, _not_allowed, [m for m in METHODS if m not in (*READS, "OPTIONS")])
    app.add_route(f"{TIMELINES}{{rest:path}}", handlers.timelines.answer, METHODS)
    app.add_route("/{anything:path}", handlers.calls.call, METHODS)
    app.add_exception_handler(HTTPException, problems.of_framework)
    app.add_exception_handler(Exception, problems.of_bug)
    return Counted(RawPath(app), metrics)


async def _options(_request: Request) -> Response:
    return Response(None, 204, {"Allow": problems.READS})


async def _not_allowed(_request: Request) -> Response:
    raise HTTPException(405, "this resource is read only")


class Counted:
    """ASGI: counts and times all answers."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "other"

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(method, str(message["status"])).inc()
                self._metrics.seconds.observe(time.monotonic() - started)
            await send(message)

        await self._app(scope, receive, counted)
