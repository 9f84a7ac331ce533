"""A source record, by way of the commands, at the target: nothing of it is lost on the way (timeline.md 11)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.stage import Emission, Record, header
from headrace_core.state import MemoryState
from headrace_core.timeline.settings import Buffer, Settings
from headrace_core.timeline.source import SourceStage
from headrace_core.timeline.stage import TimelineStage

T = 1_700_000_000_000
SETTINGS = Settings(bucket_count=8, partitions=2, buffer=Buffer(source="in", target="out", delay_ms=10))


class Buffered:
    """A source stage and a timeline, one partition each."""

    def __init__(self, settings_: Settings = SETTINGS, partition: int = 3) -> None:
        self.source, self.source_state = SourceStage(settings_, "t", "x.in"), MemoryState()
        self.stage, self.state = TimelineStage(settings_, "t", buffer_fixed=True), MemoryState()
        self.partition, self.read, self.commands = partition, 0, 0

    def take(self, key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None], at: int = T) -> Emission:
        """The command of the next source record."""
        found: list[Emission] = []
        record = Record(self.partition, self.read, at, key, value, headers)  # type: ignore[arg-type]
        self.source.apply(self.source_state, record, found.append)
        self.read += 1
        [command] = found
        return command

    def apply(self, command: Emission, at: int = T) -> list[Emission]:
        assert command.partition is not None
        record = Record(command.partition, self.commands, at, command.key, command.value, command.headers)
        return self._apply(record)

    def tick(self, at: int) -> list[Emission]:
        return self._apply(Record(self.partition % 2, self.commands, at, None, b"", (("kind", b"tick"),)))

    def _apply(self, record: Record) -> list[Emission]:
        out: list[Emission] = []
        self.stage.apply(self.state, record, out.append)
        self.commands += 1
        return out

    def gauge(self, name: str) -> int:
        return self.stage.gauges(self.state)[name]


def test_a_source_record_is_a_command_in_the_partition_of_its_bucket() -> None:
    both = Buffered()
    command = both.take(b"k", b"v", ("h", b"1"))
    assert (command.topic, command.key, command.partition) == ("timeline.t.commands", b"x.in-3-0", 1)
    assert header(command.headers, "id") == b"timeline.t.in:3:0:0"
    assert json.loads(header(command.headers, "tl-args") or b"") == {
        "topic": "x.in", "partition": 3, "offset": 0, "record_timestamp": T,
    }  # fmt: skip
    assert both.source.gauges(both.source_state) == {"in": 1}
    assert both.source.next_due(both.source_state) is None


HEADERS = st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=4)


@settings(max_examples=60, deadline=None)
@given(key=st.none() | st.binary(max_size=9), value=st.none() | st.binary(max_size=99), headers=HEADERS)
def test_key_value_and_headers_come_out_as_they_went_in(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    both = Buffered()
    carried = [one for one in headers if one[0] not in ("tl-source", "deliver-at")]
    assert both.apply(both.take(key, value, *carried)) == []
    [out] = both.tick(T + 10)
    assert (out.topic, out.key, out.value) == ("out", key, value)
    assert list(out.headers) == [*carried, ("tl-source", b"x.in-3-0"), ("id", b"timeline.t:1:1:0")]


@pytest.mark.parametrize(
    ("deliver_at", "due"),
    [(b"%d" % (T + 500), T + 500), (b"0", T), (b"soon", T + 10), (None, T + 10), (b"-5", T + 10), (b"9" * 50, T + 10)],
)
def test_deliver_at_stands_before_the_delay_and_is_kept(deliver_at: bytes | None, due: int) -> None:
    both = Buffered()
    both.apply(both.take(b"k", b"v", ("deliver-at", deliver_at)))
    assert both.stage.next_due(both.state) == (due if due > T else 0)
    assert due == T or both.tick(due - 1) == []
    [out] = both.tick(due)
    assert out.headers[0] == ("deliver-at", deliver_at)


def test_the_delay_counts_from_the_records_own_time() -> None:
    both = Buffered()
    both.apply(both.take(b"k", b"v", at=T - 400), at=T)
    [out] = both.tick(T)
    assert header(out.headers, "tl-source") == b"x.in-3-0"


def test_marks_of_an_earlier_time_buffer_are_replaced_and_the_id_of_another_stage_stays() -> None:
    both = Buffered()
    marks = (("tl-source", b"old-0-1"), ("id", b"timeline.other:0:0:0"), ("id", b"batching:0:0:0"))
    both.apply(both.take(b"k", b"v", *marks))
    [out] = both.tick(T + 10)
    assert out.headers == (("id", b"batching:0:0:0"), ("tl-source", b"x.in-3-0"), ("id", b"timeline.t:1:1:0"))


def test_a_command_that_comes_again_is_counted_and_ignored_before_and_after_its_release() -> None:
    both = Buffered()
    command = both.take(b"k", b"v")
    both.apply(command)
    both.apply(command)
    assert len(both.tick(T + 10)) == 1
    assert both.apply(command, at=T + 20) == []
    assert both.tick(T + 99) == []
    names = ("taken", "duplicates", "emitted", "buffered", "ticks", "ticks_useless")
    assert [both.gauge(name) for name in names] == [1, 2, 1, 0, 2, 1]


def test_at_most_a_thousand_leave_with_a_record_in_the_order_of_the_source() -> None:
    both = Buffered()
    for number in range(1_100):
        both.apply(both.take(b"k", b"%d" % number))
    first, second = both.tick(T + 10), both.tick(T + 10)
    assert (len(first), len(second)) == (1_000, 100)
    assert [int(out.value or b"") for out in first + second] == list(range(1_100))


@pytest.mark.parametrize(
    ("op", "args", "code"),
    [
        ("poll", {"consumer": "C", "lease_ms": 100, "limit": 1}, "NOT_ALLOWED"),
        ("configure", {"settings": {"buffer": None}}, "SETTING_IMMUTABLE"),
        ("configure", {"settings": {"buffer": {"source": "in", "target": "raw", "delay_ms": 10}}}, "SETTING_IMMUTABLE"),
    ],
)
def test_what_a_buffer_does_not_do_is_refused(op: str, args: dict[str, object], code: str) -> None:
    both = Buffered()
    headers = (("tl-op", op.encode()), ("tl-args", json.dumps(args).encode()))
    [event] = both._apply(Record(1, 0, T, None, b"", headers))
    assert (event.topic, json.loads(event.value or b"")["code"]) == ("timeline.t.events", code)
    both.apply(both.take(b"k", b"v"))
    assert len(both.tick(T + 10)) == 1


def test_other_settings_can_be_configured() -> None:
    both = Buffered()
    changes = {"dedup_window_ms": 5, "buffer": {"source": "in", "target": "out", "delay_ms": 10}}
    args = json.dumps({"settings": changes}).encode()
    assert both._apply(Record(1, 0, T, None, b"", (("tl-op", b"configure"), ("tl-args", args)))) == []
    both.apply(both.take(b"k", b"v"))
    both.tick(T + 10)
    assert both.stage.next_purge(both.state) == T + 15


def test_a_buffers_record_in_a_timeline_without_buffer_is_refused() -> None:
    both = Buffered(Settings(bucket_count=8, partitions=2))
    [event] = both.apply(both.take(b"k", b"v"))
    assert json.loads(event.value or b"")["code"] == "BAD_REQUEST"


NAMES = st.sampled_from(
    ["tl-op", "tl-args", "tl-request-id", "tl-reply-to", "tl-reply-partition", "kind", "deliver-at", "delay-ms",
     "tl-producer-group", "h"]
)  # fmt: skip
OPS = [
    b"create", b"buffer_in", b"poll", b"move", b"configure", b"purge", b"tick", b"{}", b"[]", b"5", b"\xff", b"",
    b'{"settings": 5}', b'{"topic":"in","partition":0,"offset":0}',
]  # fmt: skip
HOSTILE = st.lists(st.tuples(NAMES, st.none() | st.sampled_from(OPS)), max_size=5)


@settings(max_examples=100, deadline=None)
@given(HOSTILE, st.none() | st.sampled_from([b"a", b"\xff", b"in-0-0"]), st.none() | st.binary(max_size=3))
def test_whatever_stands_in_the_log_is_answered_and_never_an_exception(
    headers: list[tuple[str, bytes | None]], key: bytes | None, value: bytes | None
) -> None:
    for chosen in (SETTINGS, Settings(bucket_count=8, partitions=2)):
        both = Buffered(chosen)
        both._apply(Record(1, 0, T, key, value, tuple(headers)))  # type: ignore[arg-type]
        both.tick(T + 10**12)
        assert both.gauge("in") == 2
