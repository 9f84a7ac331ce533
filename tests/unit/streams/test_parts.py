"""Small parts of the runner: stages by name, topic settings, partitions of emissions, sizes."""

from __future__ import annotations

import pytest

from headrace_core.errors import ConfigError
from headrace_core.stage import Emission
from headrace_streams.producer import mutations_size, partition_of
from headrace_streams.settings import StreamsSettings
from headrace_streams.sizes import RECORD_OVERHEAD
from headrace_streams.stages import load
from headrace_streams.topics import topic_config, wanted

COUNTING = "tests.support.counting_stage:CountingStage"


def test_a_stage_is_loaded_by_its_class_and_made_anew_each_time() -> None:
    (spec,) = load(StreamsSettings(stages=COUNTING))
    assert (spec.name, spec.input, spec.outputs, spec.changelog) == (
        "counting",
        "raw",
        ("routed",),
        "counting.changelog",
    )
    assert spec.make() is not spec.make()
    assert wanted([spec]) == ["raw", "routed", "dead-letter", "counting.changelog"]


def test_an_unknown_stage_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown stage 'nothing'"):
        load(StreamsSettings(stages="nothing"))


def test_a_changelog_is_compacted_with_a_lag_and_inputs_carry_append_time() -> None:
    changelog = topic_config("counting.changelog", 9_000_000)
    assert changelog["cleanup.policy"] == "compact"
    assert int(changelog["min.compaction.lag.ms"]) > 0
    assert topic_config("raw", 1)["message.timestamp.type"] == "LogAppendTime"
    assert "cleanup.policy" not in topic_config("raw", 1)


@pytest.mark.parametrize(("key", "murmur2"), [(b"21", -973932308), (b"foobar", -790332482), (b"abc", 479470107)])
def test_the_partition_of_a_key_is_that_of_the_java_client(key: bytes, murmur2: int) -> None:
    assert partition_of(Emission("routed", key, b""), 3, {"routed": 7}) == (murmur2 & 0x7FFFFFFF) % 7


def test_a_named_partition_is_kept_and_without_key_the_inputs_one_is_taken() -> None:
    assert partition_of(Emission("routed", b"k", b"", (), 5), 3, {"routed": 7}) == 5
    assert partition_of(Emission("routed", None, b""), 9, {"routed": 7}) == 2


def test_the_estimated_size_counts_keys_values_and_overhead() -> None:
    assert mutations_size({b"abc": b"12", b"d": None}) - mutations_size({}) == 6 + 2 * RECORD_OVERHEAD
