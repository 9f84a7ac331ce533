"""HTTP writes (registration.md 12): a request goes to the log, the stream processor applies and answers it.

    read and checked -> sent -> answered -> in our replica -> told
                          '--not within the limit--> 504: it may still happen

A request is sent once and never again by this service, so it is applied once or not at all, whoever dies. What can be
told without the log (no such path, no JSON) is refused here; what depends on the state is decided where the state is.
Before the answer is told, the replica waits for what it says, so that who writes can read it here at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import structlog

from headrace_api import bodies, problems
from headrace_api.metrics import Metrics
from headrace_api.progress import Progress
from headrace_api.wakeup import Wakeup
from headrace_core.registration import routes
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.message import write_json
from headrace_core.registration.reasons import Refusal
from headrace_core.registration.routes import ABSENT, Request, Response

log = structlog.get_logger(__name__)

METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
FORWARDED = ("content-type", "if-match")
"""Headers that the engine looks at; no other one gets into the log."""
MOST_OPEN = 1_000
STARTING_S = 5.0
SHOWN_S = 2.0
"""How long an answer waits for our replica at most."""


class NotSent(Exception):
    """A request has not been written and never will be; its text says why."""


class TooLarge(Exception):
    """A record is larger than its topic allows, so it has not been written."""


class NoAnswer(Exception):
    """Nobody has answered in time. `partition` and `offset` say where in `raw` the request is; -1: not known."""

    def __init__(self, partition: int, offset: int) -> None:
        super().__init__(f"no answer to raw-{partition} at {offset}")
        self.partition = partition
        self.offset = offset


class Reply(NamedTuple):
    """An answer, and where in `raw` its request is."""

    partition: int
    offset: int
    response: Response


class Mail(Protocol):
    """The way to the log and back; in service a Mailbox on Kafka."""

    def problem(self) -> str:
        """Why nothing can be sent now; empty if it can."""
        ...

    def starting(self) -> bool:
        """Whether the process has just begun: what keeps it from sending may be over in a moment."""
        ...

    def correlation(self) -> str:
        """A correlation id that nobody else uses."""
        ...

    async def ask(self, root: str, correlation: str, value: bytes, seconds: float) -> Reply:
        """Send a request document, wait for its answer. Raises NotSent, NoAnswer, Refusal `too_large`."""
        ...


class Writer:
    """Answers writes; on the event loop."""

    def __init__(
        self, config: RegistrationConfig, mail: Mail, progress: Callable[[], Progress], moved: Wakeup, metrics: Metrics,
        *, seconds: float,
    ) -> None:  # fmt: skip
        """`seconds`: how long an answer is waited for (section 11: 10)."""
        self._config = config
        self._mail = mail
        self._progress = progress
        self._moved = moved
        self._metrics = metrics
        self._seconds = seconds
        self._open = 0

    async def check(self, method: str, path: str, headers: Mapping[str, str]) -> routes.Route:
        """What a write is for, before its body is read. Raises Refusal."""
        found = routes.route(self._config, Request(method, path))
        bodies.check_head(headers)
        await patience(self._mail.starting)
        if problem := self._mail.problem():
            raise Refusal("not_ready", problem)
        if self._open >= MOST_OPEN:
            raise Refusal("not_ready", f"{MOST_OPEN} writes wait for their answers")
        return found

    async def answer(self, found: routes.Route, request: Request, raw: bytes) -> Response:
        """Send a write that has been checked and answer it. Never raises what a client could cause."""
        started = time.monotonic()
        self._open += 1
        self._metrics.writes_open.set(self._open)
        try:
            response = await self._ask(found, request, raw)
        except Refusal as refusal:
            response = refused(refusal, request.path)
        finally:
            self._open -= 1
            self._metrics.writes_open.set(self._open)
        self._metrics.write_seconds.labels(found.resource, request.method).observe(time.monotonic() - started)
        return response

    async def _ask(self, found: routes.Route, request: Request, raw: bytes) -> Response:
        correlation = self._mail.correlation()
        value = await asyncio.to_thread(envelope, request, raw, correlation)
        try:
            reply = await self._mail.ask(found.root, correlation, value, self._seconds)
        except NotSent as error:
            raise Refusal("not_ready", str(error)) from error
        except NoAnswer as error:
            raise Refusal("timeout", self._late(error)) from error
        await self._shown(reply)
        return reply.response

    def _late(self, error: NoAnswer) -> str:
        """What is known of a write without answer."""
        words = f"no answer within {self._seconds:g} s"
        if error.offset < 0:
            return f"{words}, and Kafka has not confirmed the write; it may still happen"
        where = f"it is in the log, raw-{error.partition} at {error.offset}"
        if self._contained(error.partition, error.offset):
            return f"{words}; {where}, and was processed, but its answer is lost: read what is there now"
        return f"{words}; {where}, and happens when the stream processor gets there: is it running?"

    def _contained(self, partition: int, offset: int) -> bool:
        """Whether the replica has what the record at this place in `raw` has made."""
        partitions = self._progress().partitions
        return partition < len(partitions) and partitions[partition].source >= offset

    async def _shown(self, reply: Reply) -> None:
        deadline = time.monotonic() + SHOWN_S
        while not self._contained(reply.partition, reply.offset) and time.monotonic() < deadline:
            await self._moved.wait(min(0.2, SHOWN_S))


async def patience(starting: Callable[[], bool]) -> None:
    """Wait while something is starting, for STARTING_S at most."""
    deadline = time.monotonic() + STARTING_S
    while starting() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


def envelope(request: Request, raw: bytes, correlation: str) -> bytes:
    """The request document of the topic `raw`. Raises Refusal for a body that is not as it must be."""
    headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
    document = {"method": request.method, "path": request.path, "headers": headers, "correlation": correlation}
    body = bodies.read_body(raw)
    return write_json(document if body is ABSENT else document | {"body": body})


def refused(refusal: Refusal, path: str) -> Response:
    """The problem document; 503 says when to come again."""
    response = routes.problem(refusal, path)
    if refusal.reason == "not_ready":
        return Response(response.status, {**response.headers, "Retry-After": problems.RETRY_S}, response.body)
    return response
