"""The job file: one TOML file, checked before anything starts; each message names the field."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from headrace_core.errors import ConfigError
from headrace_spark import destinations, references
from headrace_spark.audit import Audit
from headrace_spark.backfill import Backfill
from headrace_spark.checks import check
from headrace_spark.transforms.costs import Cost, Dearest, cost
from headrace_spark.transforms.rows import IDENTITY, Bounds, Keying

CHUNK_ROWS: Final = 1000
"""Most rows of a COPY (spark-writer.md 4)."""
NETWORK_HEADROOM: Final = 0.05


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times in ms. `capacity` in units per second; `share` is the job's expected part of it. `max` is the most rows of
    a request, `max_bytes` the most bytes of their values; `topics` defaults to `<prefix>batches`; `metrics_port` 0
    takes a free port, and none means no server. `path`: "direct", or "staged" where sink and state are one PostgreSQL
    database; `stage_cost` is the cost of a chunk of rows that goes there to be merged, as `cost` if it is not given;
    with `append` rows have no key there: each is added, once, and none replaces another.
    `mode` "lanes" keeps the order of time for a sink `call:module:function` or `http(s)://...`; `lane_mode` "stream"
    lets rows wait for others of their time, for `lateness_ms` and `linger_ms` (packing.md 6); a request is tried again
    for `max_send_ms`, and one that is refused is parked, or stops the job (`on_reject`). `lease_store` (`tcp://` with a
    token, `postgresql://`, `redis://`, or `embedded` in the driver): the capacity is that of `resource`, shared with
    all that use it by `weight`; `factor` is what a leased partition is worth. `handover`: a partition that is given
    back waits for a second, or takes the ledger of what was spent along. `max_share`: the job never takes more of the
    capacity. `max_concurrent_batches`: most requests at work at one time in each process. `max_wait_ms`: how long
    one waits for capacity while nothing goes out anywhere.
    `sink` `http(s)://...` or `call:...` in mode `keyed` (`destinations.py`): rows are tried `max_attempts` times, then
    their record goes to `retry_topic` (`<prefix><job>.retry`) and comes back on `<prefix><job>.again`, `max_rounds`
    times at most; or the micro-batch fails (`on_exhausted`). `request_timeout_ms` bounds a try. There `key` names
    the columns that say what a row is, and `version` the one by which a row replaces another, if not the usual.
    `headers` names the Kafka headers that go with the rows to a sink `http(s)://...` or `call:...`."""

    job: str
    kafka: str
    checkpoint: str
    sink: str
    state_dsn: str
    capacity: int
    cost: str
    expected_cost_per_record: float
    prefix: str = "headrace."
    topics: list[str] = []
    table: str = "measurements"
    path: Literal["direct", "staged"] = "direct"
    stage_cost: str = ""
    append: bool = False
    mode: Literal["keyed", "lanes"] = "keyed"
    lane_mode: Literal["stream", "backlog"] = "stream"
    lateness_ms: int = 1_000
    linger_ms: int = 1_000
    max_send_ms: int = 60_000
    on_reject: Literal["park", "stop"] = "park"
    max_attempts: int = 3
    max_rounds: int = 8
    on_exhausted: Literal["retry", "fail"] = "retry"
    retry_topic: str = ""
    request_timeout_ms: int = 30_000
    charge_header: str = ""
    key: list[str] = []
    version: str = ""
    headers: list[str] | None = None
    authorization_file: str = ""
    max: int = 500
    max_bytes: int = 4 * 1024 * 1024
    share: float = 1.0
    headroom: float | None = None
    lease_store: str = ""
    lease_token: str = ""
    lease_token_file: str = ""
    resource: str = ""
    weight: int = 4
    handover: Literal["wait", "inherit"] = "wait"
    max_share: float = 1.0
    max_concurrent_batches: int = 4
    max_wait_ms: int = 600_000
    factor: int = 0
    trigger_ms: int = 5000
    available_now: bool = False
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 0
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    max_corrupt_share: float = 0.5
    max_document_bytes: int = 8 * 1024 * 1024
    stop_timeout_ms: int = 30_000
    sink_down_max_ms: int = 600_000
    seen_retention_ms: int = 7 * 86_400_000
    allow_speculation: bool = False
    master: str = "local[2,4]"
    spark: dict[str, str] = {}
    kafka_options: dict[str, str] = {}
    audit: Audit = Audit()
    backfill: Backfill = Backfill()

    @property
    def subscribed(self) -> list[str]:
        """The topics that the job reads."""
        return [*(self.topics or [f"{self.prefix}batches"]), *filter(None, [self.again_topic])]

    @property
    def again_topic(self) -> str:
        """Where records come back from the delayed retry topic; empty for a job that has none."""
        return f"{self.prefix}{self.job}.again" if destinations.retries(self) else ""

    @property
    def delayed_topic(self) -> str:
        """The delayed retry topic, empty for a job that has none."""
        return (self.retry_topic or f"{self.prefix}{self.job}.retry") if destinations.retries(self) else ""

    @property
    def dead_letter_topic(self) -> str:
        """Where dead letters go."""
        return f"{self.prefix}dead-letter"

    @property
    def lanes_stream(self) -> bool:
        """Whether lanes keep rows from one micro-batch to the next."""
        return self.mode == "lanes" and self.lane_mode == "stream"

    @property
    def routed_topic(self) -> str:
        """The topic that the batcher reads, for the replay audit."""
        return self.audit.routed or f"{self.prefix}routed"

    @property
    def batches_topic(self) -> str:
        """The topic that the batcher writes, for the replay audit."""
        return self.audit.batches or f"{self.prefix}batches"

    @property
    def cost_of(self) -> Cost:
        """The cost function."""
        return cost(self.cost)

    @property
    def keying(self) -> Keying:
        """What a row is, and which of two is newer."""
        return Keying(tuple(self.key or IDENTITY.key), self.version)

    @property
    def carried(self) -> tuple[str, ...]:
        """The Kafka headers that go with the rows to the sink: those of traces and ids, for a function that is not told
        otherwise."""
        if self.headers is None:
            return destinations.CARRIED if self.sink.startswith(destinations.CALL) else ()
        return tuple(self.headers)

    @property
    def stage_cost_of(self) -> Cost:
        """The cost function of a staged chunk."""
        return cost(self.stage_cost, "stage_cost") if self.stage_cost else self.cost_of

    @property
    def partition_worth(self) -> int:
        """Units per second of a leased partition: `factor`, or a twentieth of the capacity."""
        return self.factor or -(-self.capacity // 20)

    @property
    def speculates(self) -> bool:
        """Whether Spark may start a twin of a slow task."""
        return self.spark.get("spark.speculation", "false").lower() == "true"

    @property
    def task_tries(self) -> int:
        """How often Spark tries a task: the second number of `local[tasks,tries]`, 1 without it, and elsewhere
        `spark.task.maxFailures`."""
        inside = re.fullmatch(r"local(?:\[[^,\]]*(?:,\s*(\d+))?\])?", self.master)
        return int(inside[1] or 1) if inside else int(self.spark.get("spark.task.maxFailures", "4"))

    @property
    def cautions(self) -> list[str]:
        """What a start warns of, as it works but is not advised (spark-writer.md 6)."""
        twin = "speculation: a twin task spends capacity twice"
        once = "a task is tried once, so a Python worker that dies ends the job; local[n,4] or 4 tries are usual"
        return [twin] * self.speculates + [once] * (self.task_tries == 1)

    @property
    def tasks_at_once(self) -> int:
        """As many Python workers may send at one time, as far as the job file tells: one for each `spark.task.cpus`
        cores of an executor."""
        cpus = int(self.spark.get("spark.task.cpus", "1"))
        inside = re.match(r"local(?:-cluster)?\[(\d+|\*)(?:,(\d+))?", self.master)
        if inside:
            cores = os.cpu_count() or 1 if inside[1] == "*" else int(inside[1])
            if self.master.startswith("local-cluster"):
                return cores * max(1, int(inside[2] or 1) // cpus)
            return max(1, cores // cpus)
        executors = "dynamicAllocation.maxExecutors" if self.allocates else "executor.instances"
        if "spark.cores.max" in self.spark:
            return max(1, int(self.spark["spark.cores.max"]) // cpus)
        each = max(1, int(self.spark.get("spark.executor.cores", "1")) // cpus)
        return each * int(self.spark.get(f"spark.{executors}", "1"))

    @property
    def is_local(self) -> bool:
        """Whether all workers are on this host."""
        return self.master.startswith(("local[", "local-cluster[")) or self.master == "local"

    @property
    def allocates(self) -> bool:
        """Whether executors come and go (dynamic allocation); then there are as many as its upper bound says."""
        return self.spark.get("spark.dynamicAllocation.enabled", "false").lower() == "true" and not self.is_local

    @property
    def chunk_rows(self) -> int:
        """Most rows of a staged chunk: 1,000, `max`, or fewer if the capacity takes fewer."""
        largest = self.stage_cost_of.largest(self.chunk_capacity)
        most = min(CHUNK_ROWS, self.max)
        return most if largest < 0 else min(most, largest)

    @property
    def share_units(self) -> int:
        """Units per second that the job may ever take of the capacity. What is leased is whole partitions."""
        found, worth = self.capacity * round(self.max_share * 1000) // 1000, self.partition_worth
        return found // worth * worth if self.shares else found

    @property
    def task_units(self) -> int:
        """The part of it that one Python worker may take: all of them send at one time."""
        worth = self.partition_worth
        return self.share_units // self.tasks_at_once // worth * worth if self.shares else self.share_units

    @property
    def first_units(self) -> int:
        """What a Python worker leases at first: its part, if as many begin at one time as can."""
        worth = self.partition_worth
        return -(-self.share_units // (self.tasks_at_once * worth)) * worth

    @property
    def shares(self) -> bool:
        """Whether the job leases, and may not take all of the capacity."""
        return bool(self.lease_store) and self.max_share < 1

    @property
    def usable(self) -> int:
        """Units per second after headroom, and of them at most `max_share`."""
        return self._after_headroom(self.share_units)

    @property
    def unused(self) -> float:
        """The part of the capacity that is left unused: `headroom`, or 0.05 if the sink is over a network, which can
        bunch what was sent evenly (spark-writer.md 6)."""
        if self.headroom is not None:
            return self.headroom
        return NETWORK_HEADROOM if destinations.over_network(self.sink) else 0.0

    def _after_headroom(self, found: int) -> int:
        return found * (1000 - round(self.unused * 1000)) // 1000

    @property
    def request_rows(self) -> int:
        """Most rows of one request: `max`, or fewer if the capacity takes fewer."""
        largest = self.cost_of.largest(self.request_capacity)
        return self.max if largest < 0 else min(self.max, largest)

    @property
    def bounds(self) -> Bounds:
        """Of one request. In Delta Lake it is a commit, which bytes and capacity bound."""
        rows = sys.maxsize if destinations.is_delta(self.sink) else self.request_rows
        return Bounds(rows, self.max_bytes, self.request_capacity)

    @property
    def chunk_bounds(self) -> Bounds:
        """Of one staged chunk."""
        return Bounds(self.chunk_rows, self.max_bytes, self.chunk_capacity)

    @property
    def chunk_capacity(self) -> int:
        """Units per second that a Python worker may use, so the most that a staged chunk may cost."""
        return self._after_headroom(self.task_units)

    @property
    def request_capacity(self) -> int:
        """Units per second that a process which sends requests may use, so the most that a request may cost."""
        return self.chunk_capacity if destinations.sent_by_tasks(self) else self.usable

    @property
    def dearest(self) -> Dearest | None:
        """What a single row may cost; None if all cost the same, and the job was checked to fit one."""
        costs = [self.cost_of, self.stage_cost_of] if self.path == "staged" else [self.cost_of]
        most = self.chunk_capacity if self.path == "staged" else self.request_capacity
        return Dearest(costs, most) if any(one.varies for one in costs) else None


def load(path: Path, told: Mapping[str, str] = MappingProxyType({})) -> Settings:
    """Read and check the job file; `told`: settings of Spark that are in force already, by spark-submit. Raises
    `ConfigError`."""
    try:
        plain, secrets = references.resolve(msgspec.toml.decode(path.read_bytes()))
        found = msgspec.convert(plain, type=Settings)
    except OSError as error:
        raise ConfigError("config", f"cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:  # a ValidationError ends with "at `$.field`" or names the missing field
        raise ConfigError("config", str(error)) from error
    whole = {"master": told.get("spark.master", found.master), "spark": {**told, **found.spark}}
    found = msgspec.structs.replace(found, **whole)
    references.refuse(found.spark, secrets)
    with references.hidden(secrets):
        check(found)
    return found
