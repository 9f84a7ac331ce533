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
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

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
LONGEST_WAIT_S, MOST_WAITING, LOOK_S = 60, 200, 0.1
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
PLAIN = frozenset(range(0x21, 0x7F)) - frozenset(b'"<>\\^`{|}')
KNOWN_METHODS = frozenset(METHODS)


class Answers(Protocol):
    """What answers reads; in service a Reader on the replica."""

    def answer(self, request: routes.Request, progress: Progress, /) -> routes.Response: ...


class Encoded(NamedTuple):
    """An answer as bytes; `media` and `body` None: there is no body."""

    status: int
    headers: dict[str, str]
    media: str | None
    body: bytes | None


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
        self._waiting = 0
        self.closing = False

    async def query(self, request: Request) -> Response:
        """Everything of registration.md 12 and 13, and everything that is not there."""
        path = request.scope["path"]
        text = request.scope["query_string"].decode()
        method = "GET" if request.method == "HEAD" else request.method
        asked = routes.Request(method, f"{path}?{text}" if text else path, _headers(request))
        try:
            seconds = _wait(request)
        except ValueError:
            return problems.problem(400, "invalid_query", f"wait is 0 to {LONGEST_WAIT_S} seconds", path)
        answer = await self._ask(asked)
        if answer.status == HTTPStatus.NOT_MODIFIED and seconds:
            if self._waiting >= MOST_WAITING:
                return problems.problem(429, "too_many_streams", f"{MOST_WAITING} are waiting", path)
            answer = await self._long_poll(request, asked, answer, seconds)
        return Response(answer.body, answer.status, answer.headers, answer.media)

    async def _ask(self, asked: routes.Request) -> Encoded:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._answer, asked, self._progress())

    def _answer(self, asked: routes.Request, progress: Progress) -> Encoded:
        """In a thread: a page of documents takes milliseconds to encode, too."""
        answer = self._answers.answer(asked, progress)
        headers = dict(answer.headers)
        media = headers.pop("Content-Type", "application/json")
        if answer.body is ABSENT:
            return Encoded(answer.status, headers, None, None)
        return Encoded(answer.status, headers, media, write_json(answer.body))

    async def _long_poll(self, request: Request, asked: routes.Request, answer: Encoded, seconds: int) -> Encoded:
        """Ask again whenever the replica has moved, until the tag differs (registration.md 13)."""
        deadline = time.monotonic() + seconds
        seen = self._progress().partitions
        self._waiting += 1
        try:
            while answer.status == HTTPStatus.NOT_MODIFIED and time.monotonic() < deadline and not self.closing:
                await asyncio.sleep(LOOK_S)
                if await request.is_disconnected():
                    break
                if self._progress().partitions != seen:
                    seen = self._progress().partitions
                    answer = await self._ask(asked)
        finally:
            self._waiting -= 1
        return answer

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
        """End long polls soon."""
        self.closing = True


def _wait(request: Request) -> int:
    """Seconds of a long poll, 0 if there is none. Raises ValueError."""
    text = request.query_params.get("wait", "") if "/v1/registrations/" in request.scope["path"] else ""
    if text and not (text.isascii() and text.isdigit() and len(text) <= 2 and int(text) <= LONGEST_WAIT_S):
        raise ValueError("wait")
    return int(text or 0)


def _headers(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _json(body: Any, status: int = 200) -> Response:
    return Response(write_json(body), status, None, "application/json")


def build(handlers: Handlers, metrics: Metrics) -> ASGIApp:
    """The application."""
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
