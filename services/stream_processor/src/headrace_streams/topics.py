"""The topics a worker needs: created if missing, checked if there (`architecture.md`, Topics).

Partition counts of a stage's input, its changelog and the other root-keyed topics are equal; a difference ends the
start, because state and records of a root would no longer meet. A timeline's commands have the partitions of its
settings, and the source of a time buffer has what it has; only their changelogs must fit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headrace_core.errors import HeadraceError
from headrace_streams.sizes import DEAD_LETTER, LEAST_BYTES
from headrace_streams.stages import StageSpec

log = structlog.get_logger(__name__)

ROOT_KEYED = ("raw", "routed", "batches")
COMPACTED = ("entities", "registrations")
ALREADY_EXISTS = 36
VISIBLE_S = 30.0
COMPACTION_LAG_MS = 60 * 60 * 1000
DAY_MS = 24 * 60 * 60 * 1000
TOMBSTONES_MS = 7 * DAY_MS
TIMELINE = re.compile(r"timeline\.[^.]+\.(commands|parked)")
RETENTION_MS = {"commands": 7 * DAY_MS, "parked": 30 * DAY_MS}
"""Of a timeline's topics (timeline.md 16)."""


class TopicError(HeadraceError):
    """A topic cannot be created or does not fit. Ends the start."""

    code = "topic"


def topic_config(logical: str, max_message_bytes: int) -> dict[str, str]:
    """Topic settings by logical name."""
    config = {"max.message.bytes": str(max_message_bytes)}
    of_timeline = TIMELINE.fullmatch(logical)
    if logical in ROOT_KEYED or (of_timeline and of_timeline[1] == "commands"):
        config["message.timestamp.type"] = "LogAppendTime"
    if of_timeline:
        config["retention.ms"] = str(RETENTION_MS[of_timeline[1]])
    if logical in COMPACTED:
        config["cleanup.policy"] = "compact"
    if logical.endswith(".changelog"):
        config |= {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
            "delete.retention.ms": str(TOMBSTONES_MS),
        }
    return config


def wanted(specs: Iterable[StageSpec]) -> list[str]:
    """Logical names of all topics of these stages, inputs first, each once."""
    names = [name for spec in specs for name in (spec.ticks, spec.input, *spec.outputs, DEAD_LETTER, spec.changelog)]
    return list(dict.fromkeys(filter(None, names)))


async def ensure(
    bootstrap: str,
    prefix: str,
    specs: Sequence[StageSpec],
    *,
    partitions: int,
    replication: int,
    max_message_bytes: int,
) -> None:
    """Create what is missing, check what is there.

    Raises TopicError if partition counts differ or a topic cannot be created.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        rooted = [spec for spec in specs if spec.rooted]
        for together in filter(None, (rooted, *([spec] for spec in specs if not spec.rooted))):
            count = together[0].partitions or partitions
            await _ensure(admin, prefix, together, count, replication, max_message_bytes)
    finally:
        await admin.close()


async def _ensure(
    admin: AIOKafkaAdminClient, prefix: str, specs: Sequence[StageSpec], partitions: int, replication: int, size: int
) -> None:
    """The same for stages whose inputs have equal partitions."""
    names = wanted(specs)
    timed = list(dict.fromkeys(name for spec in specs if spec.ticks for name in (spec.ticks, spec.input)))
    found = await _counts(admin, [prefix + name for name in names])
    inputs = [prefix + name for name in (*timed, *(spec.input for spec in specs))]
    count = next((found[name] for name in inputs if name in found), partitions)
    missing = [name for name in names if prefix + name not in found]
    await _create(admin, prefix, missing, count, replication, size)
    found = await _all_visible(admin, [prefix + name for name in names])
    _check(prefix, specs, found, count)
    for name in timed:
        await _check_time(admin, prefix + name)


async def message_bytes(bootstrap: str, prefix: str, names: Sequence[str]) -> dict[str, int]:
    """`max.message.bytes` of topics that are there, by logical name. Raises TopicError if one is too small to work."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        found = {name: int(await _setting(admin, prefix + name, "max.message.bytes")) for name in names}
    finally:
        await admin.close()
    for name, size in found.items():
        if size < LEAST_BYTES:
            raise TopicError(f"{prefix}{name}: max.message.bytes is {size}, must be {LEAST_BYTES} or more")
    return found


async def _setting(admin: AIOKafkaAdminClient, topic: str, setting: str) -> str:
    asked = ConfigResource(ConfigResourceType.TOPIC, topic, {setting: ""})
    for response in await admin.describe_configs([asked]):
        for _code, _message, _type, _name, entries in response.resources:
            for name, value, *_ in entries:
                if name == setting:
                    return str(value)
    raise TopicError(f"{topic}: the broker does not tell {setting}")


async def _counts(admin: AIOKafkaAdminClient, topics: list[str]) -> dict[str, int]:
    described = await admin.describe_topics(topics)
    return {t["topic"]: len(t["partitions"]) for t in described if not t["error_code"] and t["partitions"]}


async def _create(
    admin: AIOKafkaAdminClient, prefix: str, names: list[str], partitions: int, replication: int, max_bytes: int
) -> None:
    if not names:
        return
    news = [
        NewTopic(prefix + name, partitions, replication, topic_configs=topic_config(name, max_bytes)) for name in names
    ]
    response = await admin.create_topics(news)
    for topic, code, *message in response.topic_errors:
        if code not in (0, ALREADY_EXISTS):
            raise TopicError(f"{topic}: error {code} {message}")
    log.info("topics created", topics=[prefix + name for name in names], partitions=partitions)


async def _all_visible(admin: AIOKafkaAdminClient, topics: list[str]) -> dict[str, int]:
    async with asyncio.timeout(VISIBLE_S):
        while len(found := await _counts(admin, topics)) < len(topics):
            await asyncio.sleep(0.1)
    return found


async def _check_time(admin: AIOKafkaAdminClient, topic: str) -> None:
    """The log's time is the broker's append time (`batching.md` 4.2, ADR 1)."""
    value = await _setting(admin, topic, "message.timestamp.type")
    if value != "LogAppendTime":
        raise TopicError(f"{topic}: message.timestamp.type is {value}, must be LogAppendTime")


def _check(prefix: str, specs: Sequence[StageSpec], found: dict[str, int], count: int) -> None:
    for spec in specs:
        must = spec.partitions or count
        rooted = [name for name in wanted([spec]) if name in ROOT_KEYED] if spec.rooted else []
        for name in (spec.input, spec.changelog, *rooted):
            if found[prefix + name] != must:
                raise TopicError(f"{prefix}{name} has {found[prefix + name]} partitions, {spec.name} needs {must}")
