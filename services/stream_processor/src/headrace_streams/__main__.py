"""`python -m headrace_streams`: builds the worker from the environment and runs it until SIGTERM or an error.

`python -m headrace_streams verify STAGE` compares its databases with the changelog instead (`verify.py`).

Exit codes: 0 after SIGTERM or SIGINT, 2 when a setting or a topic is wrong, 70 after any other error: start it again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

import structlog
from pydantic import ValidationError
from pydantic_settings import SettingsError

from headrace_core.errors import ConfigError
from headrace_core.misspelt import unread
from headrace_streams import allocator, collector, http, logs, stages, topics, verify
from headrace_streams.owner import TimelineOwner
from headrace_streams.producer import Outlet
from headrace_streams.settings import StreamsSettings
from headrace_streams.sizes import Limits
from headrace_streams.ticks import Ticker
from headrace_streams.watchdog import Watchdog
from headrace_streams.worker import Worker, fatal

log = structlog.get_logger("headrace_streams")

CRASH_POLL_S = 0.2
STOP_S = 30.0
WRONG_SETTING, FAILED = 2, 70


async def run(settings: StreamsSettings) -> None:
    """Start everything, wait for a signal, stop everything."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    specs = stages.load(settings)
    collecting = asyncio.create_task(collector.run())
    await topics.ensure(
        settings.kafka, settings.prefix, specs, partitions=settings.partitions, replication=settings.replication,
        max_message_bytes=settings.max_request_bytes + 64 * 1024,
    )  # fmt: skip
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    limits = Limits(await topics.message_bytes(settings.kafka, settings.prefix, topics.wanted(specs)))
    outlet = Outlet(settings.kafka, settings.prefix, settings.max_request_bytes, limits)
    await outlet.start()
    worker = Worker(settings, specs, outlet)
    ticker = Ticker(worker, outlet, tick_interval_ms=settings.tick_interval_ms)
    owner = TimelineOwner(worker, outlet)
    watchdog = Watchdog(worker, settings.stall_s, {"ticks": ticker, "timelines": owner})
    web = await http.serve(worker, ticker.written, watchdog, settings.http_host, settings.http_port)
    runs = (worker.start(), ticker.run(), watchdog.run(), owner.run())
    tasks = [asyncio.create_task(run) for run in runs]
    log.info("started", stages=[spec.name for spec in specs], settings=settings.model_dump(mode="json"))
    await _until_stopped(worker, tasks[0], stopping)
    log.info("stopping")
    collecting.cancel()
    for task in tasks[1:]:
        task.cancel()
    await _stop(worker.stop, outlet.stop, web.cleanup)
    log.info("stopped")


async def _stop(*stops: Callable[[], Awaitable[None]]) -> None:
    """One after the other. What does not end in time, or fails, ends the process: the next start repeats its chunk."""
    try:
        async with asyncio.timeout(STOP_S):
            for stop in stops:
                await stop()
    except TimeoutError:
        fatal(TimeoutError(f"not stopped within {STOP_S} s"), "stop")
    except Exception as error:
        fatal(error, "stop")


async def _until_stopped(worker: Worker, starting: asyncio.Task[None], stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        if starting.done() and starting.exception():
            fatal(starting.exception() or RuntimeError("start"), "faust")
        if worker.app.crashed:
            fatal(worker.app.crash_reason or RuntimeError("crashed"), "faust")
        try:
            await asyncio.wait_for(stopping.wait(), CRASH_POLL_S)
        except TimeoutError:
            continue


def in_one_line(error: ValidationError) -> str:
    """What is wrong, each with the field's name."""
    found = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in found)


def warn_of_misspelt() -> None:
    """A line for each variable that looks like one of ours and is none."""
    prefix = str(StreamsSettings.model_config["env_prefix"])
    for name, nearest in unread(os.environ, prefix, StreamsSettings.model_fields):
        log.warning("no such setting", variable=name, nearest=nearest)


def main() -> int:
    """Run; returns the exit code."""
    logs.configure()
    warn_of_misspelt()
    allocator.bound()
    if sys.argv[1:2] == ["verify"]:
        return verify.main(sys.argv[2:])
    try:
        settings = StreamsSettings()
    except ValidationError as error:
        log.critical("wrong setting", error=in_one_line(error))
        return WRONG_SETTING
    except SettingsError as error:
        log.critical("wrong setting", error=str(error))
        return WRONG_SETTING
    try:
        asyncio.run(run(settings))
    except ConfigError as error:
        log.critical("wrong setting", field=error.field, error=str(error))
        return WRONG_SETTING
    except topics.TopicError as error:
        log.critical("failed", error=str(error))
        return WRONG_SETTING
    except Exception as error:
        log.critical("failed", error=repr(error), exc_info=error)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
