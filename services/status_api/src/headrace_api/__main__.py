"""`python -m headrace_api`: builds the API from the environment and runs it until SIGTERM or an error.

Exit codes: 0 after SIGTERM or SIGINT, 2 when a setting is wrong, 70 after an error while running.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator

import structlog
import uvicorn
from pydantic import ValidationError
from pydantic_settings import SettingsError
from starlette.types import ASGIApp

from headrace_api import app, events, follower, logs, mailbox, replica
from headrace_api.calls import Calls, Source
from headrace_api.capacity import CapacityHandler
from headrace_api.metrics import Metrics
from headrace_api.protocol import TimedProtocol
from headrace_api.reading import Reader
from headrace_api.settings import Settings
from headrace_api.situation import Situation
from headrace_api.timelines.handler import TimelineHandler
from headrace_api.wakeup import Wakeup
from headrace_api.writing import Writer
from headrace_core.errors import ConfigError
from headrace_core.misspelt import unread

log = structlog.get_logger("headrace_api")

WRONG_SETTING, FAILED = 2, 70
STOP_S = 10
RECURSION = 20_000
"""Whatever nesting the stream processor could read, this process can write."""
CHANGELOG = "registration.changelog"
REGISTRATIONS = "registrations"
COUNTERS_CHANGELOG = "batching.changelog"


class Server(uvicorn.Server):
    """uvicorn without its signal handling: ours decides about the exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Parts:
    """Everything that runs beside the event loop: followers of three topics, and the mailbox."""

    def __init__(self, settings: Settings) -> None:
        config, kafka, prefix = settings.registration_config(), settings.kafka, settings.prefix
        self.config = config
        self.moved, self.told = Wakeup(), Wakeup()
        store = replica.Replica(settings.database)
        self.replica = follower.Follower(store, kafka, prefix + CHANGELOG, follower.change, moved=self.moved.notify)
        counts = replica.Replica(settings.counters, replica.BATCHING)
        self.counters = follower.Follower(counts, kafka, prefix + COUNTERS_CHANGELOG, follower.change)
        log_of_events = events.EventLog(settings.events)
        self.events = follower.Follower(
            log_of_events, kafka, prefix + REGISTRATIONS, events.told, moved=self.told.notify
        )  # fmt: skip
        self.mailbox = mailbox.Mailbox(kafka, prefix, lambda whose: self.metrics.replies.labels(whose).inc())
        self.metrics = Metrics(
            lambda: self.replica.progress, lambda: self.events.progress, lambda: not self.mailbox.problem()
        )  # fmt: skip

    @property
    def all(self) -> tuple[follower.Runs, ...]:
        """What runs in a thread each."""
        return self.replica, self.counters, self.events, self.mailbox


def application(settings: Settings, parts: Parts) -> tuple[ASGIApp, Callable[[], None]]:
    """The HTTP application over the parts, and what ends its long calls."""
    reader = Reader(settings.database, parts.config, settings.counters)
    writer = Writer(
        parts.config, parts.mailbox, lambda: parts.replica.progress, parts.moved, parts.metrics,
        seconds=settings.write_wait_s,
    )  # fmt: skip
    source = Source(events.Events(settings.events), parts.told, lambda: parts.events.progress)
    calls = Calls(
        parts.config, reader, lambda: parts.replica.progress, parts.moved, writer, source, parts.metrics
    )  # fmt: skip
    situation = Situation(lambda: parts.replica.progress, lambda: parts.events.progress, parts.mailbox)
    capacity = CapacityHandler(settings.lease_status(), parts.metrics.registry, settings.capacity_resources)
    timelines = TimelineHandler(parts.mailbox, parts.metrics)

    def close() -> None:
        calls.close()
        timelines.close()

    return app.build(app.Handlers(calls, reader, situation, capacity, timelines, parts.metrics), parts.metrics), close


async def serve(settings: Settings, parts: Parts, listener: socket.socket) -> list[BaseException]:
    """Answer until a signal, or until a part fails; returns its error."""
    asgi, close = application(settings, parts)
    server = Server(
        uvicorn.Config(
            asgi, http=TimedProtocol, ws="none", lifespan="off", access_log=False, log_config=None,
            server_header=False, timeout_graceful_shutdown=STOP_S,
        )
    )  # fmt: skip
    errors: list[BaseException] = []

    def failed(error: BaseException) -> None:
        errors.append(error)
        loop.call_soon_threadsafe(stop)

    def stop() -> None:
        log.info("stopping")
        close()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    threads = [follower.start(one, failed) for one in parts.all]
    await server.serve([listener])
    for one in parts.all:
        one.stop()
    for thread in threads:
        await asyncio.to_thread(thread.join, STOP_S)
    return errors


def run(settings: Settings) -> None:
    """Everything, until a signal. Raises what makes the process fail."""
    settings.registration_config()
    settings.lease_status()
    family = socket.AF_INET6 if ":" in settings.http_host else socket.AF_INET
    with socket.create_server((settings.http_host, settings.http_port), family=family, backlog=512) as listener:
        parts = Parts(settings)
        log.info("started", kafka=settings.kafka, prefix=settings.prefix, http=list(listener.getsockname()[:2]))
        errors = asyncio.run(serve(settings, parts, listener))
    if errors:
        if isinstance(errors[0], sqlite3.DatabaseError) and not isinstance(errors[0], sqlite3.OperationalError):
            for path in (settings.database, settings.counters, settings.events):  # damaged: the next start builds anew
                replica.delete(path)
        raise errors[0]
    log.info("stopped")


def warn_of_misspelt() -> None:
    """A line for each variable that looks like one of ours and is none."""
    for name, nearest in unread(os.environ, str(Settings.model_config["env_prefix"]), Settings.model_fields):
        log.warning("no such setting", variable=name, nearest=nearest)


def main() -> int:
    """Run; returns the exit code."""
    logs.configure()
    warn_of_misspelt()
    sys.setrecursionlimit(RECURSION)
    try:
        run(Settings())
    except (ValidationError, SettingsError, ConfigError) as error:
        log.critical("wrong setting", error=str(error))
        return WRONG_SETTING
    except Exception as error:
        log.critical("failed", error=repr(error), exc_info=error)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
