"""The HTTP side: raw ASGI requests to values, values to answers. Decides nothing and sees no client library.

Paths are matched undecoded: `RawPath` puts the path as sent where the framework expects a decoded one, so an encoded
slash stays within its segment (registration.md 12). Queries run in threads of their own; the loop stays free for
/healthz. Every answer that is not a success is a problem document.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import structlog
from fastapi import FastAPI
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_api import openapi, problems
from headrace_api.metrics import Metrics
from headrace_api.progress import Progress
from headrace_core.registration import routes
from headrace_core.registration.message import write_json
from headrace_core.registration.routes import ABSENT

log = structlog.get_logger(__name__)

QUERY_THREADS = 4
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
PLAIN = frozenset(range(0x21, 0x7F)) - frozenset(b'"<>\\^`{|}')
KNOWN_METHODS = frozenset(METHODS)


class Answers(Protocol):
    """What answers reads; in service a Reader on the replica."""

    def answer(self, request: routes.Request, progress: Progress, /) -> routes.Response: ...


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
    """All handlers; `progress` gives how far the replica is now."""

    def __init__(self, answers: Answers, progress: Callable[[], Progress], metrics: Metrics) -> None:
        self._answers = answers
        self._progress = progress
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="query")

    async def query(self, request: Request) -> Response:
        """Everything of registration.md 12 and 13, and everything that is not there."""
        path = request.scope["path"]
        text = request.scope["query_string"].decode()
        method = "GET" if request.method == "HEAD" else request.method
        asked = routes.Request(method, f"{path}?{text}" if text else path, _headers(request))
        if "wait" in request.query_params and "/v1/registrations/" in path:
            return problems.problem(501, "not_implemented", problems.LONG_POLLS_COME_LATER, path)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._answers.answer, asked, self._progress())
        return _response(answer)

    async def healthz(self, request: Request) -> Response:
        """200 while the consumer makes progress."""
        trouble = self._progress().trouble(time.monotonic())
        if trouble:
            return problems.problem(503, "stalled", trouble, request.scope["path"])
        return _json({"status": "ok"})

    async def readyz(self, request: Request) -> Response:
        """200 after the replica has caught up with the ends it saw at start."""
        now = self._progress()
        lag = {str(n): p.lag for n, p in enumerate(now.partitions)}
        if now.ready:
            return _json({"ready": True, "lag": lag})
        return problems.not_ready(now.why_not_ready, request.scope["path"], ready=False, lag=lag)

    async def metrics(self, _request: Request) -> Response:
        """Prometheus text."""
        return Response(generate_latest(self._metrics.registry), 200, None, "text/plain; version=0.0.4; charset=utf-8")

    async def document(self, _request: Request) -> Response:
        """The OpenAPI document."""
        return _json(openapi.DOCUMENT)

    def close(self) -> None:
        """Wait for the queries under way."""
        self._threads.shutdown()


def _headers(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _json(body: Any, status: int = 200) -> Response:
    return Response(write_json(body), status, None, "application/json")


def _response(answer: routes.Response) -> Response:
    headers = dict(answer.headers)
    media = headers.pop("Content-Type", "application/json")
    if answer.body is ABSENT:
        return Response(None, answer.status, headers)
    return Response(write_json(answer.body), answer.status, headers, media)


def build(answers: Answers, progress: Callable[[], Progress], metrics: Metrics) -> ASGIApp:
    """The application."""
    handlers = Handlers(answers, progress, metrics)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for path, handler in {
        "/healthz": handlers.healthz, "/readyz": handlers.readyz, "/metrics": handlers.metrics,
        "/openapi.json": handlers.document,
    }.items():  # fmt: skip
        app.add_route(path, handler, ["GET", "HEAD"])
        app.add_route(path, _not_allowed, [m for m in METHODS if m not in ("GET", "HEAD")])
    app.add_route("/{anything:path}", handlers.query, METHODS)
    app.add_exception_handler(HTTPException, problems.of_framework)
    app.add_exception_handler(Exception, problems.of_bug)
    return Counted(RawPath(app), metrics)


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
