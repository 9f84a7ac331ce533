"""What must hold of a job file as a whole, before anything starts; each message names the field."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headrace_core.capacity.protocol import MAX_PARTITIONS
from headrace_spark import destinations, kafka_clients, values
from headrace_spark.database import is_postgres
from headrace_spark.transforms.rows import MAX_ROW_BYTES
from headrace_spark.values import EMBEDDED, dsn, require

if TYPE_CHECKING:
    from headrace_spark.settings import Settings

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check(found: Settings) -> None:
    """Raise `ConfigError` for the first field that cannot work."""
    values.check(found)
    dsn("state_dsn", found.state_dsn)
    if found.mode == "lanes":
        _lanes(found)
    elif destinations.known(found.sink):
        destinations.check(found)
    else:
        dsn("sink", found.sink)
    if destinations.sent_by_tasks(found):
        destinations.check_tasks(found, found.is_local)
    learns = destinations.answers(found) or not found.cost_of.learned
    require(learns, "cost", "must not be learned(...) for a sink that tells no charge")
    require(not (found.stage_cost and found.stage_cost_of.learned), "stage_cost", "must not be learned(...)")
    destinations.check_keying(found)
    destinations.check_headers(found)
    if found.cost_of.call:
        found.cost_of.function()
    _leases(found)
    require(found.request_rows >= 1, "cost", f"not even one row fits a capacity of {found.request_capacity}")
    if found.path == "staged":
        _staged(found)
    require(
        found.path == "staged" or not found.append,
        "append",
        'needs path = "staged": each row has its effect once there alone',
    )
    _audit(found)
    found.backfill.check("backfill", found.subscribed)
    _options(found)


def _leases(found: Settings) -> None:
    if found.lease_store == EMBEDDED:
        reached = found.is_local or "spark.driver.host" in found.spark
        require(reached, "lease_store", "embedded needs spark.driver.host, an address that executors can reach")
    elif found.lease_store:
        values.lease_store(found)
    if found.lease_store:
        names = ("spark.cores.max", "spark.dynamicAllocation.maxExecutors")
        bounded = not (found.shares and found.allocates) or any(name in found.spark for name in names)
        require(bounded, "max_share", f"with dynamic allocation needs {' or '.join(names)}, to share it out")
        lacks = f"is less than a leased partition, worth {found.partition_worth}: give a smaller factor"
        require(found.share_units, "max_share", lacks)
        each = f"for each of {found.tasks_at_once} Python workers at one time {lacks}, or fewer tasks"
        by_tasks = found.path == "staged" or destinations.sent_by_tasks(found)
        require(found.task_units or not by_tasks, "max_share", each)
        partitions = -(-found.capacity // found.partition_worth)
        require(
            partitions <= MAX_PARTITIONS, "factor", f"makes {partitions} partitions, at most {MAX_PARTITIONS} may be"
        )


def _lanes(found: Settings) -> None:
    """Packed batches are never split, so a full one must fit (spark-writer.md 5)."""
    destinations.check_lanes(found)
    require(found.path == "direct", "path", "must be direct for the mode lanes")
    ends = found.available_now and found.lane_mode == "stream"
    require(not ends, "available_now", 'needs lane_mode = "backlog": in stream mode rows wait for a clock that goes on')
    unknown = "for the mode lanes: a request is never cut, so a full one must be known to fit"
    require(not found.cost_of.content, "cost", f"must not be {found.cost_of.content} {unknown}")
    full = found.cost_of(found.max, found.max * MAX_ROW_BYTES)
    most = found.request_capacity
    require(full <= most, "cost", f"a full batch of {found.max} rows costs up to {full} of {most}")


def _audit(found: Settings) -> None:
    found.audit.check("audit", [found.routed_topic])
    for name in ("routed", "batches"):
        topic = getattr(found, f"{name}_topic")
        require(_TOPIC.fullmatch(topic), f"audit.{name}", "must be the name of a Kafka topic")
    found.audit.config  # noqa: B018  raises for a wrong setting of the batcher


def _staged(found: Settings) -> None:
    one = is_postgres(found.sink) and found.state_dsn == found.sink
    require(one, "path", "staged needs one PostgreSQL database as sink and state_dsn")
    merged = "on the staged path: the database merges the rows"
    require(not found.cost_of.content, "cost", f"must not be {found.cost_of.content} {merged}")
    require(
        not (found.append and found.backfill.name),
        "backfill.name",
        "must not be given with append: it would add rows that are there",
    )
    require(found.chunk_rows >= 1, "stage_cost", f"not even one row fits a capacity of {found.chunk_capacity}")
    require(found.is_local or found.lease_store, "master", "must be local on the staged path without a lease_store")


def _options(found: Settings) -> None:
    kafka_clients.client(found.kafka, found.kafka_options)
    require(
        not found.speculates or found.allow_speculation,
        "spark.speculation",
        "must be false, because a twin task spends twice (allow_speculation = true overrides)",
    )
