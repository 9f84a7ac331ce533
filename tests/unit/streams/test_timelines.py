"""Timelines of the settings: which stages and topics they are, and that a wrong one is named (timeline.md 2, 11)."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_core.errors import ConfigError
from headrace_core.state import MemoryState
from headrace_core.timeline.source import SourceStage
from headrace_core.timeline.stage import TimelineStage
from headrace_streams.settings import StreamsSettings
from headrace_streams.stages import StageSpec, load
from headrace_streams.topics import TopicError, _check, topic_config, wanted

BUFFER = {"source": "job.retry", "target": "job.again", "delay_ms": 1000}


def loaded(timelines: dict[str, Any], stages: str = "") -> list[StageSpec]:
    return load(StreamsSettings(stages=stages, timelines=timelines, prefix="p."))


def test_a_time_buffer_is_a_stage_on_the_commands_and_one_on_the_source() -> None:
    timeline, source = loaded({"r": {"partitions": 4, "buffer": BUFFER}})
    assert (timeline.name, timeline.input, timeline.ticks) == ("timeline.r", *["timeline.r.commands"] * 2)
    assert timeline.outputs == ("timeline.r.events", "timeline.r.parked", "replies")
    assert (timeline.partitions, timeline.changelog, timeline.rooted) == (4, "timeline.r.changelog", False)
    assert (source.name, source.input, source.ticks, source.rooted) == ("timeline.r.in", "job.retry", "", False)
    assert source.outputs == ("timeline.r.commands", "job.again")
    assert isinstance(timeline.make(), TimelineStage)
    assert isinstance(source.make(), SourceStage)
    assert timeline.make() is not timeline.make()
    assert [timeline.make().name, source.make().name] == [timeline.name, source.name]
    assert "raw" not in wanted([timeline, source])


def test_a_transaction_is_asked_for_and_not_around_what_makes_commands() -> None:
    for asked in (True, False):
        timeline, source = loaded({"r": {"partitions": 4, "buffer": BUFFER, "transaction": asked}})
        assert (timeline.transaction, source.transaction) == (asked, False)
        assert timeline.make().engine(0).settings(MemoryState()).partitions == 4  # type: ignore[attr-defined]
    assert [spec.transaction for spec in loaded({"r": {}, "s": {"transaction": True}})] == [False, True]


@pytest.mark.parametrize("target", ["raw", "routed", "next.in", "timeline.s.commands"])
def test_no_stage_reads_the_target_of_a_transaction(target: str) -> None:
    settings = {"s": {"partitions": 4, "buffer": {"source": "next.in", "target": "out", "delay_ms": 1}}}
    first: dict[str, Any] = {"buffer": BUFFER | {"target": target}}
    assert loaded({"r": first, **settings})
    with pytest.raises(ConfigError, match=f"a stage reads {target}") as error:
        loaded({"r": first | {"transaction": True}, **settings})
    assert error.value.field == "timelines.r.transaction"


def test_a_timeline_without_buffer_is_one_stage_beside_the_others() -> None:
    names = [spec.name for spec in loaded({"jobs": {}}, "registration,batching")]
    assert names == ["registration", "batching", "timeline.jobs"]
    assert [spec.name for spec in loaded({"jobs": {}}, "timeline.jobs")] == ["timeline.jobs"]


def test_the_commands_are_stamped_by_the_broker_and_nothing_is_kept_for_ever() -> None:
    commands, parked = topic_config("timeline.r.commands", 1), topic_config("timeline.r.parked", 1)
    assert commands["message.timestamp.type"] == "LogAppendTime"
    assert (commands["retention.ms"], parked["retention.ms"]) == ("604800000", "2592000000")
    assert topic_config("timeline.r.in.changelog", 1)["cleanup.policy"] == "compact"
    assert topic_config("timeline.r.events", 1) == {"max.message.bytes": "1"}


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"a.b": {}}, "timelines.a.b", "a name has"),
        ({"": {}}, "timelines.", "a name has"),
        ({"r": {"transaction": 1}}, "timelines.r.transaction", "must be true or false"),
        ({"r": 5}, "timelines.r", "Expected `object`, got `int`"),
        ({"r": {"max_pol": 1}}, "timelines.r.max_pol", "there is no such setting"),
        ({"r": {"max_poll": "1"}}, "timelines.r.max_poll", "Expected `int`, got `str`"),
        ({"r": {"max_poll": 0}}, "timelines.r.max_poll", "must be a whole number from 1"),
        ({"r": {"partitions": 3}}, "timelines.r.partitions", "must divide bucket_count"),
        ({"r": {"buffer": {}}}, "timelines.r.buffer.source", "must be given"),
        ({"r": {"buffer": BUFFER | {"delay": 1}}}, "timelines.r.buffer.delay", "there is no such setting"),
        ({"r": {"buffer": BUFFER | {"delay_ms": "1 s"}}}, "timelines.r.buffer.delay_ms", "Expected `int`, got `str`"),
        ({"r": {"buffer": BUFFER | {"delay_ms": True}}}, "timelines.r.buffer.delay_ms", "Expected `int`, got `bool`"),
        ({"r": {"buffer": BUFFER | {"delay_ms": -1}}}, "timelines.r.buffer.delay_ms", "must be 0 or more"),
        ({"r": {"buffer": BUFFER | {"source": "a b"}}}, "timelines.r.buffer.source", "the name of a topic"),
        ({"r": {"buffer": BUFFER | {"target": ".."}}}, "timelines.r.buffer.target", "the name of a topic"),
        ({"r": {"buffer": BUFFER | {"target": "job.retry"}}}, "timelines.r.buffer.target", "is the source"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ConfigError) as found:
        loaded(values)
    assert found.value.field == field
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("timelines", "stages"),
    [
        ({"a": {"buffer": BUFFER}, "b": {"buffer": BUFFER}}, ""),
        ({"a": {"buffer": BUFFER | {"source": "routed"}}}, "registration,batching"),
        ({"a": {"buffer": BUFFER | {"source": "timeline.b.commands"}}, "b": {}}, ""),
    ],
)
def test_no_topic_has_two_readers(timelines: dict[str, Any], stages: str) -> None:
    with pytest.raises(ConfigError, match="reads") as found:
        loaded(timelines, stages)
    assert found.value.field == "timelines"


def test_a_worker_has_something_to_do() -> None:
    with pytest.raises(ConfigError, match="names no stage"):
        loaded({})


def test_a_topic_that_is_there_with_other_partitions_is_named() -> None:
    timeline, source = loaded({"r": {"partitions": 4, "buffer": BUFFER}})
    found = {f"p.{name}": 4 for name in wanted([timeline, source])}
    _check("p.", [timeline], found, 4)
    _check("p.", [timeline], found | {"p.job.again": 9, "p.replies": 1}, 4)
    for name, spec in (("timeline.r.commands", timeline), ("timeline.r.in.changelog", source)):
        with pytest.raises(TopicError, match=rf"p\.{name} has 3 partitions, {spec.name} needs 4"):
            _check("p.", [spec], found | {f"p.{name}": 3}, 4)
