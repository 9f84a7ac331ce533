"""`python -m headrace_api`: builds the API from the environment and runs it until SIGTERM or an error.

Exit codes: 0 after SIGTERM or SIGINT, 2 when a setting is wrong, 70 after an error while running.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator

import structlog
import uvicorn
from pydantic import ValidationError
from pydantic_settings import SettingsError

from headrace_api import app, follower, logs, replica
from headrace_api.metrics import Metrics
from headrace_api.protocol import ProblemProtocol
from headrace_api.reading import Reader
from headrace_api.settings import Settings
from headrace_core.errors import ConfigError

log = structlog.get_logger("headrace_api")

WRONG_SETTING, FAILED = 2, 70
STOP_S = 10
RECURSION = 20_000
"""Whatever nesting the stream processor could read, this process can write."""
CHANGELOG = "registration.changelog"
COUNTERS_CHANGELOG = "batching.changelog"


class Server(uvicorn.Server):
    """uvicorn without its signal handling: ours decides about the exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    settings: Settings, follow: follower.Follower, counters: follower.Follower, listener: socket.socket
) -> list[BaseException]:
    """Answer until a signal, or until a follower fails; returns its error. Ready is who follows registration."""
    reader = Reader(settings.database, settings.registration_config(), settings.counters)
    metrics = Metrics(lambda: follow.progress)
    handlers = app.Handlers(reader, lambda: follow.progress, metrics)
    server = Server(
        uvicorn.Config(
            app.build(handlers, metrics), http=ProblemProtocol, ws="none", lifespan="off", access_log=False,
            log_config=None, server_header=False, timeout_graceful_shutdown=STOP_S,
        )
    )  # fmt: skip
    errors: list[BaseException] = []

    def failed(error: BaseException) -> None:
        errors.append(error)
        stop()

    def stop() -> None:
        log.info("stopping")
        handlers.close()
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    threads = [follower.start(one, failed) for one in (follow, counters)]
    await server.serve([listener])
    for one in (follow, counters):
        one.stop()
    for thread in threads:
        await asyncio.to_thread(thread.join, STOP_S)
    return errors


def run(settings: Settings) -> None:
    """Everything, until a signal. Raises what makes the process fail."""
    settings.registration_config()
    family = socket.AF_INET6 if ":" in settings.http_host else socket.AF_INET
    with socket.create_server((settings.http_host, settings.http_port), family=family, backlog=512) as listener:
        store = replica.Replica(settings.database)
        follow = follower.Follower(store, settings.kafka, settings.prefix + CHANGELOG)
        counts = replica.Replica(settings.counters, replica.BATCHING)
        counters = follower.Follower(counts, settings.kafka, settings.prefix + COUNTERS_CHANGELOG)
        log.info("started", kafka=settings.kafka, prefix=settings.prefix, http=list(listener.getsockname()[:2]))
        errors = asyncio.run(serve(settings, follow, counters, listener))
    if errors:
        if isinstance(errors[0], sqlite3.DatabaseError) and not isinstance(errors[0], sqlite3.OperationalError):
            for path in (settings.database, settings.counters):  # damaged: the next start builds them anew
                replica.delete(path)
        raise errors[0]
    log.info("stopped")


def main() -> int:
    """Run; returns the exit code."""
    logs.configure()
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
