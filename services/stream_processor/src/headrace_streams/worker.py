"""A worker: the runners of the partitions it has been assigned, and what Faust tells it about them."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from typing import Any

import structlog
from faust.types import TP

from headrace_core.stage import Stage
from headrace_streams.chunks import Chunk
from headrace_streams.faults import Faults
from headrace_streams.faust_internals import add_agent, make_app
from headrace_streams.producer import Outlet
from headrace_streams.runner import PartitionRunner, Surroundings
from headrace_streams.settings import StreamsSettings
from headrace_streams.stages import StageSpec

log = structlog.get_logger(__name__)

OWNER_MARGIN_S = 2.0
FATAL_EXIT = 70


def fatal(error: BaseException, where: str) -> None:
    """End the process at once: nothing more is acknowledged, the next start repeats the chunk (`streams.md` 1)."""
    log.critical("fatal", where=where, error=repr(error), exc_info=error)
    sys.stderr.flush()
    os._exit(FATAL_EXIT)


class Worker:
    """Connects Faust's assignment to `PartitionRunner`s. `start`, then `stop`."""

    def __init__(self, settings: StreamsSettings, specs: list[StageSpec], outlet: Outlet) -> None:
        self._settings = settings
        self._specs = {settings.prefix + spec.input: spec for spec in specs}
        self.runners: dict[tuple[str, int], PartitionRunner] = {}
        self.assigned_once = False
        self.app = make_app(
            group=settings.prefix + "streams", bootstrap=settings.kafka, data_dir=settings.data_dir, markers=self,
            chunk_records=settings.chunk_records, session_timeout_s=settings.session_timeout_s,
            instance=settings.instance,
        )  # fmt: skip
        self._around = Surroundings(
            bootstrap=settings.kafka, prefix=settings.prefix, data_dir=settings.data_dir, outlet=outlet,
            faults=Faults(settings.fault), owns=self.owns, epoch=lambda: max(0, self.app.consumer_generation_id or 0),
            seek=self._seek, fatal=fatal, chunk_records=settings.chunk_records,
        )  # fmt: skip
        for topic in self._specs:
            add_agent(self.app, topic, self._submit)
        self.app.on_partitions_assigned.connect(self._on_assigned)
        self.app.on_partitions_revoked.connect(self._on_revoked)

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Marker + 1 of a restored partition, else None (`faust_internals.Markers`)."""
        runner = self.runners.get((topic, partition))
        return runner.next_offset if runner else None

    def owns(self) -> bool:
        """Whether the group has heard of us recently enough that no other worker can have our partitions."""
        silent = time.monotonic() - self.app.consumer.last_heartbeat
        return bool(silent < self._settings.session_timeout_s - OWNER_MARGIN_S)

    @property
    def ready(self) -> bool:
        """Assigned, and every assigned partition restored."""
        return self.assigned_once and all(runner.ready for runner in self.runners.values())

    @property
    def recovering(self) -> list[str]:
        """Assigned partitions whose state is not restored yet, `<stage>-<partition>`."""
        return sorted(f"{one.spec.name}-{one.partition}" for one in self.runners.values() if not one.ready)

    @property
    def flowing(self) -> bool:
        """Whether the consumer hands over chunks; during a rebalance it does not."""
        return bool(self.app.consumer.flow_active)

    @property
    def fetching(self) -> bool:
        """Whether somebody asks the broker for records. If not, lag stays what it was, and nothing would show it."""
        return bool(self.app.consumer.fetching)

    def lag(self, runner: PartitionRunner) -> int | None:
        """Records of the input that are not applied yet, as of the last fetch; None if not known."""
        if (offset := runner.next_offset) is None:
            return None
        try:
            highwater = self.app.consumer.highwater(_tp(runner))
        except Exception:  # aiokafka raises for what is not, or no longer, assigned
            return None
        return None if highwater is None else max(0, int(highwater) - max(offset, runner.log_start))

    def describe_consumer(self, runner: PartitionRunner, now: float) -> dict[str, Any]:
        """What the consumer is at with the partition, for the log. `now` is monotonic s."""
        silent = round(now - self.app.consumer.last_heartbeat, 1)
        return {**self.app.consumer.describe(_tp(runner)), "heartbeat": silent}

    def stage_gauges(self) -> list[tuple[str, int, str, int]]:
        """(stage, partition, name, value) of all ready partitions."""
        rows = []
        for runner in self.runners.values():
            if runner.ready and runner.state is not None and runner.reads is not None:
                stage: Stage = runner.spec.make()
                rows += [(stage.name, runner.partition, n, v) for n, v in stage.gauges(runner.reads).items()]
                marker = runner.state.position.marker
                rows.append((stage.name, runner.partition, "too_large", marker.too_large))
                rows.append((stage.name, runner.partition, "lost_to_retention", marker.retention))
        return rows

    async def start(self) -> None:
        """Join the group. Returns when the first assignment is there."""
        await self.app.start()

    async def stop(self) -> None:
        """Finish the chunks under way and close the databases, and only then leave the group."""
        await self._close(list(self.runners))
        await self.app.stop()
        await self._close(list(self.runners))

    def _submit(self, event: Any) -> None:
        runner = self.runners.get((event.message.topic, event.message.partition))
        if runner is None:
            event.ack()
        else:
            runner.submit(Chunk(event.value, functools.partial(_done_with, event)))

    async def _seek(self, topic: str, partition: int, offset: int) -> None:
        await self.app.consumer.go_to(TP(topic, partition), offset)

    async def _on_assigned(self, _app: Any, assigned: set[Any], **_: Any) -> None:
        for tp in sorted(assigned):
            spec = self._specs.get(tp.topic)
            if spec is not None and (tp.topic, tp.partition) not in self.runners:
                runner = PartitionRunner(spec, tp.partition, self._around)
                self.runners[tp.topic, tp.partition] = runner
                runner.start()
        self.assigned_once = True
        log.info("assigned", partitions=sorted(f"{t}-{p}" for t, p in self.runners))

    async def _on_revoked(self, _app: Any, revoked: set[Any], **_: Any) -> None:
        await self._close([(tp.topic, tp.partition) for tp in revoked])

    async def _close(self, keys: list[tuple[str, int]]) -> None:
        runners = [self.runners.pop(key) for key in keys if key in self.runners]
        await asyncio.gather(*(runner.close() for runner in runners))


def _done_with(event: Any) -> None:
    """Acknowledge. Whoever still holds on to the last event of a partition holds on to no records."""
    event.value.clear()
    event.ack()


def _tp(runner: PartitionRunner) -> Any:
    return TP(runner.topic, runner.partition)
