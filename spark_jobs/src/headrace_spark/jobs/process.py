"""What the processes of this package share: a session of Spark, signals, and how an end becomes an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import structlog

from headrace_core.errors import ConfigError
from headrace_spark import capacity, exits
from headrace_spark.database import StateDown
from headrace_spark.jobs import logs, submitted
from headrace_spark.leasing import Leasing
from headrace_spark.ledger import Ledger
from headrace_spark.losses import DataLost
from headrace_spark.metrics import Collector, MetricsServer, Progress
from headrace_spark.seen import Watched
from headrace_spark.settings import Settings, load
from headrace_spark.sinks.port import SinkDown

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
REDACTED: Final = r"(?i)url|secret|password|token|access[.]?key|keystore|jaas"
"""Options of the Kafka source that Spark's web page and event log must not show, by name or by value."""
_log = structlog.get_logger("headrace_spark")


def metrics_server(settings: Settings, ledger: Ledger, progress: Progress, pacer: Watched) -> MetricsServer:
    """The metrics of this process and of all before it; not started yet. `metrics_port` must be given. Raises
    `ConfigError`."""
    assert settings.metrics_port is not None
    leasing = Leasing(capacity.status(settings), settings.usable, pacer.used)
    found = Collector(ledger.totals, progress, settings.usable, pacer.used, pacer, leasing)
    try:
        return MetricsServer(found, progress, settings.metrics_port, settings.metrics_host)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # by what ends soon, maybe
            raise
        raise ConfigError("metrics_host", f"{settings.metrics_host} is not of this host: {error.strerror}") from None


def run_job(config: Path, run: Callable[[Settings], int]) -> int:
    """Read the job file and `run` the job; returns the exit code, whatever ends it."""
    logs.to_stderr()
    settings: Settings | None = None
    try:
        settings = load(config, submitted.told())
        return run(settings)
    except Exception as error:
        code = exit_code(error, one_database=settings is not None and settings.sink == settings.state_dsn)
        _log.error("failed", error=str(error), exit_code=code)
        return code


def options(settings: Settings) -> dict[str, str]:
    """Of Spark: the job file's over ours. The environment of its processes is set, too."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    defaults = {
        "spark.master": settings.master,
        "spark.app.name": f"headrace-{settings.job}",
        **({} if submitted.by_spark_submit() else {"spark.jars.packages": CONNECTOR}),
        "spark.ui.enabled": "false",
        "spark.speculation": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.redaction.options.regex": REDACTED,
        "spark.sql.streaming.stopTimeout": str(settings.stop_timeout_ms),
    }
    return {**defaults, **settings.spark}


def session(settings: Settings) -> Any:
    """Spark with the job file's settings over ours."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in options(settings).items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    if found.sparkContext.uiWebUrl:
        _log.info("spark ui", url=found.sparkContext.uiWebUrl)
    return found


def end(spark: Any) -> None:
    """Stop Spark. If its JVM is gone, this fails too, but must not hide why the job ends."""
    try:
        spark.stop()
    except Exception as error:
        _log.warning("spark did not stop", error=repr(error))


def on_signals(stop: threading.Event) -> None:
    """SIGTERM and SIGINT set `stop`."""

    def told(number: int, _: FrameType | None) -> None:
        _log.info("told to stop", signal=signal.Signals(number).name)
        stop.set()

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)


def exit_code(error: Exception, *, one_database: bool = False) -> int:
    """Of spark-writer.md 10. `one_database`: sink and state store are one, so they are down together."""
    if one_database and type(error) is StateDown:
        return exits.SINK_DOWN
    match error:
        case ConfigError():
            return exits.CONFIGURATION
        case DataLost():
            return exits.DATA_LOSS
        case exits.CheckpointRefused():
            return exits.CHECKPOINT
        case exits.CorruptInput():
            return exits.CORRUPT_INPUT
        case SinkDown():
            return exits.SINK_DOWN
        case _:
            return exits.of_message(str(error))
