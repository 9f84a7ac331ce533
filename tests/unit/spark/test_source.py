"""What the query asks of Spark's Kafka source (spark-writer.md 2), beside a Spark that keeps what it is told."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_spark.jobs import source
from tests.unit.spark.fakes import job


class Reader:
    """Of a Spark with eight cores."""

    def __init__(self, cores: int = 8) -> None:
        self.readStream = self.sparkContext = self
        self.defaultParallelism = cores
        self.kind, self.told = "", dict[str, str]()

    def format(self, kind: str) -> Reader:
        self.kind = kind
        return self

    def options(self, **told: str) -> Reader:
        self.told = told
        return self

    def load(self) -> dict[str, str]:
        assert self.kind == "kafka"
        return self.told


def options(partitions: int = 2, accepted: bool = False, **changes: Any) -> dict[str, str]:
    found: dict[str, str] = source.stream(Reader(), job(**changes), 700, partitions, accepted=accepted)
    return found


LANES = {"mode": "lanes", "sink": "call:json:dumps"}


def test_every_rule_of_the_source_is_kept() -> None:
    assert options() == {
        "kafka.bootstrap.servers": "localhost:1",
        "subscribe": "headrace.batches",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "700",
        "minPartitions": "8",
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "groupIdPrefix": "headrace-w",
        "kafka.isolation.level": "read_committed",
    }


def test_a_loss_is_passed_over_only_where_it_was_accepted() -> None:
    assert options(accepted=True) == {**options(), "failOnDataLoss": "false"}


@pytest.mark.parametrize(("partitions", "wanted"), [(3, "8"), (8, "8"), (20, "20")])
def test_keyed_rows_get_as_many_tasks_as_partitions_or_cores(partitions: int, wanted: str) -> None:
    assert options(partitions)["minPartitions"] == wanted


@pytest.mark.parametrize("lane_mode", ["stream", "backlog"])
def test_a_lane_is_never_torn_apart(lane_mode: str) -> None:
    assert "minPartitions" not in options(lane_mode=lane_mode, **LANES)


def test_tiny_micro_batches_are_waited_for_up_to_a_limit() -> None:
    found = options(min_offsets_per_trigger=50, max_trigger_delay_ms=9_000)
    assert (found["minOffsetsPerTrigger"], found["maxTriggerDelay"]) == ("50", "9000ms")
    assert options(min_offsets_per_trigger=5_000)["minOffsetsPerTrigger"] == "700", "never above the most"


def test_what_comes_back_from_the_retry_topic_is_read_too() -> None:
    assert options(sink="http://h/_bulk")["subscribe"] == "headrace.batches,headrace.w.again"


def test_options_of_the_job_file_reach_the_readers_under_their_kafka_names() -> None:
    found = options(kafka_options={"security.protocol": "SSL", "kafka.fetch.max.bytes": "1"})
    assert (found["kafka.security.protocol"], found["kafka.fetch.max.bytes"]) == ("SSL", "1")
