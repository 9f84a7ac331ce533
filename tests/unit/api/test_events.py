"""Status events: each change once, in a place that any instance knows, as long as they are kept."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace_api import events, streaming
from headrace_api.events import EventLog, Events, Told, TooOld
from headrace_api.progress import Progress
from headrace_api.streaming import Stream
from headrace_api.wakeup import Wakeup
from headrace_core.registration.queries import STATES
from tests.support.status_api import Fixture, fixture
from tests.unit.api.test_app import Asker, is_problem

PATH = "/te/v1/registration-events"
CHILD = {"@type": "child-device"}


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Asker]:
    yield Asker(fixture(tmp_path, [(1, "te/device/press//", CHILD)]))


def a_stream(given: Fixture, *, tid: str | None = None, states: str = "", last: str | None = None) -> Stream:
    wanted = frozenset(states.split(",") if states else STATES)
    source = Events(given.path / "events.db")
    return Stream(source, given.told, lambda: given.calls.closing, "te", tid, wanted, last)


def id_now(given: Fixture) -> str:
    return Events(given.path / "events.db").now("te")[1]


async def resumed(given: Fixture, last: str, **how: Any) -> list[tuple[str, str]]:
    """What a stream behind `last` is told of what has happened already."""
    stream = a_stream(given, last=last, **how)
    found: list[tuple[str, str]] = []
    lines = stream.lines()
    await anext(lines)
    while (page := await asyncio.to_thread(stream._next))[0] or page[1]:
        for block in page[0].decode().split("\n\n")[:-1]:
            document = json.loads(block.partition("data: ")[2])
            found.append((document["@topic-id"], document["state"]))
    await lines.aclose()
    return found


async def test_a_change_of_state_or_error_is_an_event_and_nothing_else_is(api: Asker) -> None:
    start = id_now(api.given)
    feed(api.given, [
        ("te/device/press//", CHILD), ("te/line/oven//", CHILD | {"@parent": "line/hall//"}),
        ("te/line/oven///m/t", {"c": 1}), ("te/device/press//", {"@type": "service"}),
        ("te/line/hall//", CHILD), ("te/device/press//", b""), ("te/device/lathe//", {"@type": "rocket"}),
    ])  # fmt: skip
    found = await resumed(api.given, start)
    assert sorted(found) == sorted([
        ("line/oven//", "pending"), ("device/press//", "registered"), ("line/hall//", "registered"),
        ("line/oven//", "registered"), ("device/press//", "removed"), ("device/lathe//", "unknown"),
    ])  # fmt: skip


def feed(given: Fixture, messages: list[tuple[str, Any]]) -> None:
    for topic, payload in messages:
        given.feed(given.now + 1, topic, payload)


async def test_an_event_has_the_document_without_its_age(api: Asker) -> None:
    start = id_now(api.given)
    feed(
        api.given, [("te/line/b//", CHILD | {"@parent": "line/a//"}), ("te/line/a//", CHILD | {"@parent": "line/b//"})]
    )
    source = Events(api.given.path / "events.db")
    seq, _ = source.resume("te", start)
    last = source.after("te", seq)[-1][0]
    shown = (await api.ask("/te/v1/registrations/line/a")).json()
    shown.pop("age_ms")
    assert json.loads(last.document) == shown
    assert shown["cycle"] is True


async def test_filters_choose_an_id_and_states(api: Asker) -> None:
    start = id_now(api.given)
    feed(api.given, [(f"te/device/d{n}//", CHILD) for n in range(3)] + [("te/device/d1//", b"")])
    assert await resumed(api.given, start, tid="device/d1//") == [
        ("device/d1//", "registered"),
        ("device/d1//", "removed"),
    ]
    assert await resumed(api.given, start, states="removed,expired") == [("device/d1//", "removed")]


@pytest.mark.parametrize(
    ("query", "reason"),
    [("?state=lost", "invalid_query"), ("?x=1", "invalid_query"), ("?id=%2B", "invalid_topic_id"),
     ("?id=a/b/c/d/e", "invalid_topic_id"), ("?id=a&id=b", "invalid_query")],
)  # fmt: skip
async def test_a_wrong_filter_is_refused(api: Asker, query: str, reason: str) -> None:
    is_problem(await api.ask(PATH + query), 400, reason)


async def test_before_the_events_are_read_there_is_no_stream(api: Asker) -> None:
    api.given.events_progress = Progress(reason="there is no topic y yet")
    assert "topic y" in is_problem(await api.ask(PATH), 503, "not_ready")["detail"]
    is_problem(await api.ask("/nobody/v1/registration-events"), 404, "not_found")
    is_problem(await api.ask(f"{PATH}/device/press"), 404, "not_found")


async def test_head_tells_what_a_stream_would_be(api: Asker) -> None:
    answer = await api.ask(PATH, "HEAD")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_stream_tells_what_happens_while_it_is_open(api: Asker) -> None:
    lines = a_stream(api.given).lines()
    first = (await anext(lines)).decode()
    assert f"id: {id_now(api.given)}\n" in first
    assert "data:" not in first
    coming = asyncio.ensure_future(anext(lines))
    await asyncio.sleep(0)
    feed(api.given, [("te/device/saw//", CHILD)])
    block = (await asyncio.wait_for(coming, 300)).decode()
    assert block.startswith(f"event: status\nid: {id_now(api.given)}\ndata: {{")
    await lines.aclose()


async def test_a_quiet_stream_shows_that_it_lives_and_how_far_it_is(
    api: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "COMMENT_S", 0.01)
    lines = a_stream(api.given, tid="device/nobody//").lines()
    await anext(lines)
    feed(api.given, [("te/device/saw//", CHILD)])
    block = (await asyncio.wait_for(anext(lines), 300)).decode()
    assert block == f": {id_now(api.given)}\nid: {id_now(api.given)}\n\n"
    await lines.aclose()


async def test_the_end_of_the_service_ends_streams(api: Asker) -> None:
    request = asyncio.create_task(api.ask(PATH))
    while not api.given.metrics.registry.get_sample_value("headrace_api_streams_open"):
        await asyncio.sleep(0.01)
    api.given.calls.close()
    answer = await asyncio.wait_for(request, 300)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert api.given.metrics.registry.get_sample_value("headrace_api_streams_open") == 0


@pytest.mark.parametrize("last", ["nonsense", "-", "00000000-1.1.1", "1.1.1", "²-1", "a-1.2.3.4.5", "9" * 5_000])
async def test_an_id_of_nothing_begins_with_a_reset(api: Asker, last: str) -> None:
    lines = a_stream(api.given, last=last).lines()
    assert f"event: reset\nid: {id_now(api.given)}\ndata: {{}}\n\n" in (await anext(lines)).decode()
    await lines.aclose()


def test_behind_the_kept_events_comes_a_reset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT", 10)
    given = fixture(tmp_path, [])
    source = Events(tmp_path / "events.db")
    ids = []
    for n in range(25):
        ids.append(id_now(given))
        feed(given, [(f"te/device/d{n}//", CHILD)])
    kept = source.after("te", 0)
    assert [tid for _, tid, _ in kept] == [f"device/d{n}//" for n in range(15, 25)]
    for n, ident in enumerate(ids):
        if n < 15:
            with pytest.raises(TooOld):
                source.resume("te", ident)
        else:
            assert source.resume("te", ident)[0] == kept[n - 15][0].seq - 1


def test_roots_do_not_push_out_each_others_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT", 5)
    given = fixture(tmp_path, [], roots={"te": "main-dev", "loud": "main-2"})
    feed(given, [("te/device/first//", CHILD)])
    start = id_now(given)
    feed(given, [("te/device/a//", CHILD), *((f"loud/device/d{n}//", CHILD) for n in range(20))])
    source = Events(tmp_path / "events.db")
    assert len(source.after("loud", 0)) == 5
    assert [tid for _, tid, _ in source.after("te", source.resume("te", start)[0])] == ["device/a//"]


def record(offset: int, tid: str, mark: int) -> Told:
    """A status record; `mark` 0: nothing is known any more."""
    document = {"@topic-id": tid, "root": "te", "state": "registered", "since": mark}
    return Told(offset, f"te/{tid}", json.dumps({"document": document}).encode() if mark else None)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), max_size=30),
    st.integers(0, 2**32),
    st.integers(0, 30),
)
def test_any_instance_goes_on_where_another_one_was(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, int]], dice: int, at: int
) -> None:
    """Two instances read the partitions in their own order; what was told at one and what comes behind it at the other
    is everything, each once, and each id in its order."""
    logs: dict[int, list[Told]] = {0: [], 1: [], 2: []}
    for part, entity, mark in changes:
        logs[part].append(record(len(logs[part]), f"device/{part}-{entity}//", mark))
    one, other = (
        instance(tmp_path_factory.mktemp("i"), logs, random.Random(dice + n)) for n in range(2)
    )  # fmt: skip
    everything = [event for event, _, _ in one.after("te", 0)]
    if not everything:
        return
    at %= len(everything)
    seq, without = other.resume("te", everything[at].id)
    behind = [event for event, _, _ in other.after("te", seq) if event.seq not in without]
    seen = [event.document for event in everything[: at + 1]] + [event.document for event in behind]
    assert sorted(seen) == sorted(event.document for event in everything)
    for tid in {json.loads(document)["@topic-id"] for document in seen}:

        def of(documents: Any, tid: str = tid) -> list[bytes]:
            return [d for d in documents if json.loads(d)["@topic-id"] == tid]

        assert of(seen) == of(event.document for event in everything)


def instance(path: Path, logs: dict[int, list[Told]], dice: random.Random) -> Events:
    """An event log that has read everything, in an order and in steps of its own, with restarts."""
    log = EventLog(path / "events.db")
    log.begin("the log", 3, max_offline_s=60)
    left = {part: list(records) for part, records in logs.items()}
    while any(left.values()):
        part = dice.choice([part for part, records in left.items() if records])
        count = dice.randrange(1, 4)
        taken, left[part] = left[part][:count], left[part][count:]
        log.apply([(part, one) for one in taken])
        if dice.random() < 0.2:
            log.close()
            log = EventLog(path / "events.db")
            log.begin("the log", 3, max_offline_s=60)
            assert [log.partitions[p].position.offset for p in left] == [len(logs[p]) - len(left[p]) for p in left]
    log.close()
    return Events(path / "events.db")


def test_repeats_and_rubbish_are_no_events(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.db")
    log.begin("the log", 1, max_offline_s=60)
    good = record(0, "device/a//", 5)
    bad = [None, b"", b"[]", b"{}", b'{"document": {"state": 1}}', b'{"document": {"state": "x", "root": 1}}']
    records = [good, good, *(Told(0, "rubbish", value) for value in bad), record(0, "device/a//", 0)]
    offsets = itertools.count()
    log.apply([(0, one._replace(offset=next(offsets))) for one in records], [(0, 100)])
    assert [state for _, _, state in Events(tmp_path / "events.db").after("te", 0)] == ["registered", "unknown"]
    assert log.partitions[0].position.offset == 100
    assert log.counts.damaged == len(bad)


def test_a_topic_that_was_made_anew_begins_anew(tmp_path: Path) -> None:
    log, source = EventLog(tmp_path / "events.db"), Events(tmp_path / "events.db")
    assert log.begin("the log", 1, max_offline_s=60) is True
    log.apply([(0, record(0, "device/a//", 5))])
    before = source.now("te")[1]
    assert log.begin("the log", 1, max_offline_s=60) is False
    assert log.begin("another log", 1, max_offline_s=60) is True
    assert source.after("te", 0) == []
    with pytest.raises(TooOld):
        source.resume("te", before)
    log.forget()
    assert source.now("te") == (0, "")


def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "events.db").write_bytes(b"rubbish" * 1_000)
    log = EventLog(tmp_path / "events.db")
    assert log.begin("the log", 1, max_offline_s=60) is True


async def test_a_wakeup_wakes_everybody_once() -> None:
    wakeup = Wakeup()
    waiting = [asyncio.create_task(wakeup.wait(60)) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.to_thread(wakeup.notify)
    await asyncio.wait_for(asyncio.gather(*waiting), 300)
    later = asyncio.create_task(wakeup.wait(60))
    await asyncio.sleep(0.05)
    assert not later.done(), "what was told before wakes nobody again"
    wakeup.notify()
    await asyncio.wait_for(later, 300)
