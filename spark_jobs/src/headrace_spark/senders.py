"""What a process needs to send requests: made once in each Python worker, and never before a fork (spark-writer.md 6).

The first use in a process makes the connection to the state store, the lease client with its batcher, the client of the
destination and, if something is refused, the producer of dead letters. They stay for the tasks that come after.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace_spark import kafka_clients
from headrace_spark.attempts import Attempts, learning
from headrace_spark.database import Database
from headrace_spark.destinations import HTTP
from headrace_spark.keyed import KeyedSender
from headrace_spark.lanes import LaneSender, LaneSink
from headrace_spark.ledger import Ledger
from headrace_spark.outbox import KafkaOutbox, Letter
from headrace_spark.pacing import PausingPacing
from headrace_spark.patience import Patience
from headrace_spark.seen import WatchedAnswers
from headrace_spark.sending import Sender
from headrace_spark.settings import Settings
from headrace_spark.sinks.answers import Destination
from headrace_spark.sinks.callables import CallableSink
from headrace_spark.sinks.called import CalledSink

if TYPE_CHECKING:
    from headrace_spark.sinks.http import BulkSink


class Tools:
    """Of one process. `run` is the start of the job, `pacing` makes what paces the process. Raises `ConfigError`."""

    def __init__(self, settings: Settings, run: str, pacing: Callable[[], PausingPacing]) -> None:
        self._settings = settings
        self.ledger = Ledger(Database(settings.state_dsn), settings.job, settings.seen_retention_ms, run)
        self.pacer = WatchedAnswers(pacing())
        self._lanes = lane_sink(settings) if settings.mode == "lanes" else None
        self._keyed = destination(settings) if self._lanes is None else None
        self._learned = learning(settings)

    def sender(self, patience: Patience, halt: threading.Event) -> Sender:
        """For one task; `halt` is set when it goes no further."""
        settings = self._settings
        if self._lanes is not None:
            return LaneSender(settings, self.ledger, self._lanes, self, self.pacer, patience, halt)
        assert self._keyed is not None
        attempts = Attempts(settings, self.ledger, self._keyed, self.pacer, patience, self._learned, halt)
        return KeyedSender(settings, attempts)

    def send(self, letters: Sequence[Letter]) -> None:
        """Implements `Outbox` for dead letters."""
        self._letters.send(letters)

    @functools.cached_property
    def _letters(self) -> KafkaOutbox:
        settings = self._settings
        return KafkaOutbox(kafka_clients.client(settings.kafka, settings.kafka_options), settings.dead_letter_topic)


def destination(settings: Settings) -> Destination:
    """The job's sink, mode `keyed`. Raises `ConfigError`."""
    return _bulk(settings, settings.request_timeout_ms) if _is_http(settings) else CalledSink(settings.sink)


def lane_sink(settings: Settings) -> LaneSink:
    """The job's sink, mode `lanes`. Raises `ConfigError`."""
    if _is_http(settings):
        return _bulk(settings, min(settings.request_timeout_ms, settings.max_send_ms))
    return CallableSink(settings.sink)


def _is_http(settings: Settings) -> bool:
    return settings.sink.startswith(HTTP)


def _bulk(settings: Settings, timeout_ms: int) -> BulkSink:
    from headrace_spark.sinks.http import BulkSink  # a packed environment may be without httpx

    return BulkSink(
        settings.sink,
        timeout_ms=timeout_ms,
        charge_header=settings.charge_header,
        authorization_file=settings.authorization_file,
        keying=settings.keying,
    )


def check(settings: Settings) -> str:
    """Make the sink once, in the driver, so that what is wrong with it is known before a task runs; returns what is
    promised of a request that is sent twice. Raises `ConfigError`."""
    if settings.mode == "lanes":
        sink = lane_sink(settings)
        return "once" if _is_http(settings) or getattr(sink, "idempotent", False) else "at_least_once"
    made = destination(settings)
    try:
        return made.effects
    finally:
        made.close()
