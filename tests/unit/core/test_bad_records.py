"""Whatever stands in a log, a stage takes it: every record has its outcome, counted, and no record ends the process.

Anybody can write to `raw` and `routed`: keys and header values may be null, names may stand twice, bytes are any bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import RESULTS, BatchingStage
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record
from headrace_core.state import MemoryState

TOPICS = [
    None, b"", b"te", b"/", b"\xff", b"other/device/a///m/t", b"te/device/a//", b"te/device/a", b"te/device/a///m/t",
    b"te/device/a///m/", b"te/device/a///m", b"te/a/b/c/d/m/t/meta", b"te/device/\x00//m/t", b"te/device/+///m/t",
    b"te/device/a///twin/k", b"te/device/a///twin/", b"te/device/a///twin/@k", b"te/device/a///cmd/x/1",
    b"te/device/a///config", b"te/device/a///signal/s", b"te/device/main//", b"te/line/b///m/t", b"te/line/b//",
    b"te/device/\xed\xa0\x80///m/t", "te/device/ü///m/\u2028".encode(), b"te/device/" + b"x" * 60_000 + b"///m/t",
]  # fmt: skip
PAYLOADS = [
    None, b"", b"{}", b"[]", b"null", b"5", b'"x"', b"\xff", b'\xef\xbb\xbf{"v":1}', b'{"v":1}', b'{"v":NaN}',
    b'{"v":1e999}', b'{"v":1,"v":2}', b'{"v":1,"time":1e400}', b'{"v":1,"time":-1e-400}', b'{"v":1,"time":-5}',
    b'{"v":1,"time":true}', b'{"v":1,"time":1e18}', b'{"v":1,"time":"0000-01-01T00:00:00Z"}',
    b'{"v":1,"time":"0001-01-01T00:00:00+23:59"}', b'{"v":1,"time":"9999-12-31T23:59:60Z"}',
    b'{"v":1,"time":%b}' % (b"9" * 5000), b'{"@type":"device","x":%b}' % (b"9" * 5000), b'{"v":' + b"[" * 3000,
    b'{"@type":"child-device"}', b'{"@type":"service","@parent":"device/a//"}', b'{"@type":5}', b'{"@type":["device"]}',
    b'{"@type":"child-device","@parent":{}}', b'{"@type":"child-device","\\ud800":1}', b'{"@type":"child-device","":1}',
    b'{"method":"POST","path":"/te/v1/entities","correlation":"c","body":{"@topic-id":"device/q//"}}',
    b'{"method":"DELETE","path":"/te/v1/entities/device/a","correlation":"","headers":{"if-match":5}}',
    b'{"method":"PATCH","path":"/te/v1/entities/device/a?x=%ff","correlation":"c","body":[]}',
    b'{"method":"PUT","path":"//%","correlation":"\\ud800"}', b'{"method":5}', b"x" * 100_000,
]  # fmt: skip
VALUES = st.sampled_from(
    [None, b"", b"0", b"1", b"-1", b"te", b"\xff", b"1" * 30, b"data", b"tick", b"flush", b"a:0:1:2"]
)
NAMES = st.sampled_from(["topic", "retain", "kind", "id", "receipt_time", "channel", "entity", "x" * 1000])
RAW = st.tuples(
    st.sampled_from([0, -1, 1000, 2000, 10**13]),
    st.sampled_from([b"te", None, b"", b"\xff", b"other"]),
    st.sampled_from(PAYLOADS),
    st.sampled_from([*TOPICS, *[b"te/device/a///m/t"] * len(TOPICS)]),
    st.sampled_from([None, None, None, None, None, None, b"tick", b"flush", b"request", b"request", b"\xff"]),
    st.lists(st.tuples(NAMES, VALUES), max_size=2),
)
OUTCOMES = ("passed", "replayed", "applied", "no_effect", "replaced", "refused.", "lost.", "discarded.", "pending")


@settings(max_examples=80, deadline=None)
@given(st.lists(RAW, max_size=12), st.data())
def test_any_record_has_its_outcome(raw: Sequence[tuple[Any, ...]], data: st.DataObject) -> None:
    registration = RegistrationStage(RegistrationConfig(pending_ttl=500, metadata_cache_bytes=200_000))
    state, routed, letters = MemoryState(), list[Emission](), 0
    for offset, (append_ms, key, value, topic, kind, more) in enumerate(raw):
        fields = [("retain", b"1"), *more, ("topic", topic)]
        headers = tuple(fields if kind is None else [*fields, ("kind", kind)])
        out: list[Emission] = []
        registration.apply(state, Record(0, offset, append_ms, key, value, headers), out.append)  # type: ignore[arg-type]
        routed += [emission for emission in out if emission.topic == "routed"]
        letters += sum(emission.topic == "dead-letter" for emission in out)
    gauges = registration.gauges(state)
    assert gauges["in"] == sum(count for name, count in gauges.items() if name.startswith(OUTCOMES))
    assert letters == gauges["unreadable"] + sum(
        n for name, n in gauges.items() if name.startswith(("refused.", "lost."))
    )
    into_batching(routed, data)


def into_batching(routed: Sequence[Emission], data: st.DataObject) -> None:
    """What registration puts out, and what others may have put there."""
    batching, state, letters = BatchingStage(BatchingConfig(window=50, timeout=100)), MemoryState(), 0
    for offset, (_, key, value, headers, _) in enumerate(routed):
        value = data.draw(st.sampled_from([value, value, *PAYLOADS]))
        spoilt = data.draw(st.lists(st.tuples(NAMES, VALUES), max_size=2))
        record = Record(0, offset, 1000 + offset, key, value, (*spoilt, *headers))  # type: ignore[arg-type]
        out: list[Emission] = []
        batching.apply(state, record, out.append)
        letters += sum(emission.topic == "dead-letter" for emission in out)
        for emission in out:
            assert json.loads(emission.value or b"", parse_int=len)
    gauges = batching.gauges(state)
    assert gauges["in"] == sum(gauges[result] for result in RESULTS)
    assert letters == gauges["invalid"] + gauges["future"] + gauges["late"]
    assert gauges["accepted"] == gauges["members"] + gauges["open_members"]


def test_header_values_may_be_null() -> None:
    stage, state, out = BatchingStage(BatchingConfig()), MemoryState(), list[Emission]()
    headers: Any = (("kind", b"data"), ("id", None), ("entity", None), ("channel", b"m/t"), ("receipt_time", None))
    stage.apply(state, Record(0, 0, 1000, None, b'{"v":1}', headers), out.append)
    stage.apply(state, Record(0, 1, 1000, None, None, (("kind", None), ("channel", None))), out.append)  # type: ignore[arg-type]
    assert [emission.topic for emission in out] == ["dead-letter"]
    gauges = stage.gauges(state)
    assert (gauges["in"], gauges["invalid"], gauges["not_measurement"]) == (2, 1, 1)


def test_a_long_text_that_is_cut_within_a_character_is_a_text_still() -> None:
    stage, out = BatchingStage(BatchingConfig()), list[Emission]()
    headers: Any = (("kind", b"data"), ("entity", b"te/device/a//"), ("channel", b"m/t"))
    text = "x" * 65_535 + "é"
    stage.apply(MemoryState(), Record(0, 0, 1000, b"te", text.encode(), headers), out.append)
    (letter,) = (json.loads(emission.value or b"") for emission in out)
    assert (letter["payload"], letter["truncated"]) == (text[:-1], True)
