"""Commands to the log of a timeline, and their replies (timeline.md 13.1, 18).

    Command -> Letter -> log ... worker ... reply -> Answer
                           '--- no reply in time ---> UNKNOWN_OUTCOME
       '--- Kafka does not take it -----------------> LOG_UNAVAILABLE: certainly without effect

A command is sent once and never again by this service. Who repeats it with the same request id gets the same answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace_api.timelines.answers import Answer, refused
from headrace_api.writing import NotSent, TooLarge
from headrace_core.registration.message import write_json
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.wire import home

REPLY_S = 5.0
"""How long a reply is waited for, beside `wait_ms` (section 17)."""
LONGEST_S = 86_400.0
LEAST_S = 1.0
"""Who was given less time for a reply cannot be blamed for none."""
FRESH_S = 30.0
UNKNOWN = "no stream processor serves it yet: name it in HEADRACE_STREAMS_TIMELINES, then PUT changes its settings"
NO_REPLY = "no reply in time: it may have happened or happen still; repeat it with the same Idempotency-Key"


@dataclass(frozen=True, slots=True)
class Command:
    """One record of the log. `id` is its key; without one, it goes to its partition as it is."""

    op: str
    args: dict[str, Any]
    partition: int
    id: str | None = None
    body: bytes = b""
    request_id: str | None = None


class Letter(NamedTuple):
    """A record as it is written; `topic` without the prefix."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


class Box(Protocol):
    """Where the replies to one letter arrive."""

    async def next(self, seconds: float) -> Any:
        """The next reply, read. Raises TimeoutError, NotSent, TooLarge."""
        ...


class Mail(Protocol):
    """The way to the log and back; in service a Mailbox on Kafka."""

    name: str

    def away(self) -> str:
        """Why nothing can be sent now; empty if it can."""
        ...

    def starting(self) -> bool:
        """Whether the process has just begun: what keeps it from sending may be over in a moment."""
        ...

    async def partitions(self, topic: str) -> int:
        """Partitions of a topic, named without the prefix; 0: there is none."""
        ...

    async def owners(self, topic: str) -> dict[int, str]:
        """Which worker has which partition of a topic, `<instance or member>@<address>`; some may not be known."""
        ...

    def correlation(self) -> str:
        """A correlation id that nobody else uses."""
        ...

    def post(self, letter: Letter, correlation: str, read: Callable[[bytes], Any]) -> AbstractContextManager[Box]:
        """Send a letter, and keep a box for its replies. Raises NotSent."""
        ...


def letter(timeline: str, command: Command, instance: str, correlation: str, now_ms: int) -> Letter:
    """The record of a command; `now_ms` is this service's wall clock, which the log only compares with its own."""
    headers = {
        "tl-op": command.op.encode(),
        "tl-args": write_json(command.args),
        "tl-reply-to": instance.encode(),
        "tl-correlation-id": correlation.encode(),
        "tl-instance": instance.encode(),
        "tl-sent-at": str(now_ms).encode(),
    }
    if command.request_id is not None:
        headers["tl-request-id"] = command.request_id.encode()
    key = None if command.id is None else command.id.encode()
    return Letter(f"timeline.{timeline}.commands", command.partition, key, command.body, list(headers.items()))


def read(raw: bytes) -> Answer:
    """The value of a reply. Raises ValueError."""
    found: Answer = msgspec.json.decode(raw, type=dict)
    return found


class Silent:
    """Partitions that have not answered lately, as far as this instance has asked: most likely they recover (14.3)."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], float] = {}

    def answered(self, timeline: str, partition: int) -> None:
        self._since.pop((timeline, partition), None)

    def did_not(self, timeline: str, partition: int, now: float) -> None:
        """No reply came in the time that one takes; `now` is monotonic s."""
        self._since[timeline, partition] = now

    def named(self, now: float) -> list[str]:
        """`<timeline>-<partition>` in order. Who was not asked again for a while is not named any more."""
        self._since = {place: at for place, at in self._since.items() if now - at < FRESH_S}
        return [f"{name}-{number}" for name, number in sorted(self._since)]


class Correspondence:
    """A command that was sent, and its replies until `deadline` (monotonic s). A waiting poll has two."""

    def __init__(self, box: Box, timeline: Timeline, partition: int) -> None:
        self._box, self._timeline, self._partition = box, timeline, partition

    async def next(self, deadline: float) -> Answer:
        """The next reply, or the refusal that says why there is none."""
        place, seconds = (self._timeline.name, self._partition), min(max(deadline - time.monotonic(), 0.0), LONGEST_S)
        try:
            found: Answer = await self._box.next(seconds)
        except TimeoutError:
            if seconds >= LEAST_S:
                self._timeline.silent.did_not(*place, time.monotonic())
            return refused("UNKNOWN_OUTCOME", NO_REPLY)
        except NotSent as error:
            return refused("LOG_UNAVAILABLE", str(error))
        except TooLarge as error:
            return refused("BODY_TOO_LARGE", str(error), limit=self._timeline.settings.max_body_bytes)
        self._timeline.silent.answered(*place)
        return found


@dataclass(frozen=True, slots=True)
class Timeline:
    """One timeline: where its ids live, and the way to its log."""

    name: str
    partitions: int
    settings: Settings
    mail: Mail
    silent: Silent = field(default_factory=Silent)

    def home(self, id_: str) -> int:
        """The partition of an id (section 9.1)."""
        return home(id_, self.settings)

    def post(self, command: Command) -> AbstractContextManager[Correspondence]:
        """Send a command."""
        return _Posted(self, command)

    async def ask(self, command: Command, seconds: float = REPLY_S) -> Answer:
        """Send a command and wait for its reply. Never raises for what the log or the worker does."""
        deadline = time.monotonic() + seconds
        try:
            with self.post(command) as sent:
                return await sent.next(deadline)
        except NotSent as error:
            return refused("LOG_UNAVAILABLE", str(error))

    async def ask_all(self, commands: Iterable[Command], seconds: float = REPLY_S) -> list[Answer]:
        """Send commands in their order, then wait for all replies."""
        return list(await asyncio.gather(*(self.ask(command, seconds) for command in commands)))

    async def owners(self) -> dict[int, str]:
        """The owner worker of each partition, as far as the group knows one now (section 14.1)."""
        return await self.mail.owners(f"timeline.{self.name}.commands")

    async def everywhere(self, op: str, args: dict[str, Any]) -> list[Answer]:
        """The same command in every partition; the replies by partition."""
        return await self.ask_all(Command(op, args, number) for number in range(self.partitions))


class _Posted(AbstractContextManager[Correspondence]):
    """Writes on entry, forgets the box on exit."""

    def __init__(self, timeline: Timeline, command: Command) -> None:
        self._timeline, self._command = timeline, command

    def __enter__(self) -> Correspondence:
        mail = self._timeline.mail
        if problem := mail.away():
            raise NotSent(problem)
        correlation = mail.correlation()
        written = letter(self._timeline.name, self._command, mail.name, correlation, time.time_ns() // 1_000_000)
        self._box = mail.post(written, correlation, read)
        return Correspondence(self._box.__enter__(), self._timeline, self._command.partition)

    def __exit__(self, *error: object) -> None:
        self._box.__exit__(None, None, None)


@dataclass(slots=True)
class Timelines:
    """The timelines that there are, by their topics. What is known of one may be forgotten at any time."""

    mail: Mail
    known: dict[str, tuple[float, Timeline]] = field(default_factory=dict)
    silent: Silent = field(default_factory=Silent)

    async def find(self, name: str) -> Timeline | Answer:
        """The timeline, or why it cannot be used now."""
        if problem := self.mail.away():
            return refused("LOG_UNAVAILABLE", problem)
        partitions = await self.mail.partitions(f"timeline.{name}.commands")
        if not partitions:
            self.known.pop(name, None)
            return refused("UNKNOWN_TIMELINE", UNKNOWN)
        at, found = self.known.get(name, (0.0, None))
        if found is None or found.partitions != partitions or time.monotonic() > at + FRESH_S:
            return await self._described(name, partitions)
        return found

    async def _described(self, name: str, partitions: int) -> Timeline | Answer:
        """Settings in force decide where an id lives and how much a client may ask; the log has them."""
        guess = Settings(partitions=partitions, bucket_count=partitions)
        asked = Timeline(name, partitions, guess, self.mail, self.silent)
        answer = await asked.ask(Command("describe", {}, 0))
        if not answer["ok"]:
            if answer["code"] == "UNKNOWN_OUTCOME":  # nothing was changed: it was a read
                return refused("RECOVERING", f"partition 0 of {name} does not answer: is a stream processor running?")
            return answer
        found = Timeline(name, partitions, msgspec.convert(answer["settings"], Settings), self.mail, self.silent)
        self.known[name] = time.monotonic(), found
        return found

    def forget(self, name: str) -> None:
        """Its settings may have changed."""
        self.known.pop(name, None)
