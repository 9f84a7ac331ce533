"""The topics of a local stack, made before anything that needs them starts (architecture.md, Topics).

They come from `headrace_schemas.topics` and have the settings that the stream processor would give them; a test holds
the two together. What is there already is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_core.errors import HeadraceError
from headrace_schemas.topics import TOPICS

STAGES = ("registration", "batching")
BY_APPEND_TIME = ("raw", "routed", "batches")
MESSAGE_BYTES = 8 * 1024 * 1024 + 64 * 1024
COMPACTION_LAG_MS = 60 * 60 * 1000
TOMBSTONES_MS = 7 * 24 * 60 * 60 * 1000
ANSWER_S = 30


class TopicsMissing(HeadraceError):
    """A topic could not be made."""

    code = "topics_missing"
    retry = True


def settings_of_topics(stages: Iterable[str] = STAGES) -> dict[str, dict[str, str]]:
    """Settings by logical name, for all topics of a stack that runs these stages; `<part>` in a name is a family."""
    found = {}
    for topic in (topic for topic in TOPICS if "<" not in topic.name):
        found[topic.name] = {"max.message.bytes": str(MESSAGE_BYTES)}
        if topic.name in BY_APPEND_TIME:
            found[topic.name]["message.timestamp.type"] = "LogAppendTime"
        if topic.retention == "compact":
            found[topic.name]["cleanup.policy"] = "compact"
    found.setdefault("replies", {"max.message.bytes": str(MESSAGE_BYTES)})
    for stage in stages:
        found[f"{stage}.changelog"] = {
            "max.message.bytes": str(MESSAGE_BYTES),
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(COMPACTION_LAG_MS),
            "delete.retention.ms": str(TOMBSTONES_MS),
        }
    return found


def create(kafka: str, prefix: str, partitions: int) -> list[str]:
    """Make what is missing; returns the names of what was made. Raises TopicsMissing."""
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    try:
        there = admin.list_topics(timeout=ANSWER_S).topics
        wanted = {prefix + name: settings for name, settings in settings_of_topics().items()}
        missing = [NewTopic(name, partitions, 1, config=wanted[name]) for name in wanted if name not in there]
        for future in (admin.create_topics(missing) if missing else {}).values():
            future.result(ANSWER_S)
    except KafkaException as error:
        raise TopicsMissing(f"the topics could not be made: {error}") from error
    return [topic.topic for topic in missing]
