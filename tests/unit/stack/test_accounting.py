"""The accounts hold for a run without faults, and each kind of loss or invention breaks them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.accounting import Account, account, latencies
from headrace.evidence import Found, Mark, Written
from headrace.publisher import digest
from headrace.telemetry import Message
from tests.support.dry_run import START_MS, Dry, FakeRecord, script


def accounted(dry: Dry, before: Mark | None = None) -> Account:
    begin = before or Mark()
    return account(begin, dry.mark(), dry.found(begin), dry.published)


def broken(found: Account) -> set[str]:
    return {line.name for line in found.lines if not line.holds}


def test_a_run_adds_up():
    found = accounted(Dry().publish(script()))
    assert broken(found) == set()
    assert found.holds
    assert found.into == found.raw == found.published == len(script())
    assert found.out + found.dead + sum(found.discarded.values()) + found.pending == found.into
    assert found.pending == 3
    assert found.dead_letters == {
        "future": 1, "id_in_use": 1, "invalid": 1, "late": 1, "unknown_channel": 1, "unregistered_signal": 1,
    }  # fmt: skip
    assert found.stored == found.rows > found.members > 0


def test_a_second_run_over_the_same_state_adds_up_by_itself():
    dry = Dry().publish(script("first"))
    first, before = accounted(dry), dry.mark()
    dry.published.clear()
    second_script = [(at_ms + 600_000, message) for at_ms, message in moved(script("second"))]
    found = accounted(dry.publish(second_script), before)
    assert broken(found) == set()
    assert found.holds
    assert found.published == len(second_script)
    assert (found.pending_before, found.pending) == (first.pending, 6)
    assert found.into == found.raw + 3
    assert found.repeats["registrations"] > first.repeats["registrations"]


def moved(messages: list[tuple[int, Message]]) -> list[tuple[int, Message]]:
    """The same with event times ten minutes later: other identities."""
    older, newer = str(START_MS)[:7], str(START_MS + 600_000)[:7]
    return [(at, replace(m, payload=m.payload.replace(older.encode(), newer.encode()))) for at, m in messages]


def test_what_the_broker_sends_back_is_not_published_again():
    dry = Dry().publish(script())
    echoes = dry.topics["outbound"][:]
    for echo in echoes:
        dry.raw(START_MS + 60_000, (echo.key_ or b"").decode(), echo.value_ or b"", retain=True)
    found = accounted(dry)
    assert found.holds
    assert found.echoes == len(echoes) > 0
    assert (found.again, found.foreign) == (0, 0)
    assert found.raw == found.published + found.echoes


def test_a_message_that_mqtt_delivers_twice_is_counted_as_such():
    dry, messages = Dry(), script()
    dry.publish(messages)
    dry.raw(START_MS + 60_000, messages[-1][1].topic, messages[-1][1].payload)
    found = accounted(dry)
    assert found.holds
    assert (found.again, found.foreign) == (1, 0)


def test_a_message_of_somebody_else_is_counted_as_such():
    dry = Dry().publish(script())
    dry.raw(START_MS + 60_000, "te/device/main///e/login", b"{}")
    found = accounted(dry)
    assert found.holds
    assert (found.again, found.foreign) == (0, 1)


def test_records_written_again_after_a_crash_are_recognised():
    dry = Dry().publish(script())
    for topic in ("batches", "dead-letter"):
        dry.topics[topic] += dry.topics[topic][-3:]
    found = accounted(dry)
    assert found.holds
    assert found.repeats["batches"] == found.repeats["dead letters"] == 3


def test_a_message_that_is_not_in_raw_is_missed_although_all_sums_hold():
    """The stages cannot know of it: only the comparison with what was published tells."""
    dry = Dry().publish(script())
    dry.published[digest("te/device/cpu///m/usage", b"never arrived")] += 1
    assert broken(accounted(dry)) == {"published = found in raw"}


def test_a_message_without_acknowledgement_is_missed():
    dry = Dry().publish(script())
    found = account(Mark(), dry.mark(), dry.found(), dry.published, unacknowledged=1)
    assert broken(found) == {"published = acknowledged"}


Mistake = Callable[[Dry], None]
LOSSES: dict[str, Mistake] = {
    "a record of raw": lambda dry: drop(dry, "raw", b""),
    "a measurement of routed": lambda dry: drop(dry, "routed", b"data"),
    "a registration of routed": lambda dry: drop(dry, "routed", b"register"),
    "a batch": lambda dry: drop(dry, "batches", b""),
    "a dead letter": lambda dry: drop(dry, "dead-letter", b""),
}


def drop(dry: Dry, topic: str, kind: bytes) -> None:
    records = dry.topics[topic]
    place = next(n for n, record in enumerate(records) if dict(record.headers_).get("kind", b"") == kind)
    del records[place]


@pytest.mark.parametrize("mistake", LOSSES.values(), ids=LOSSES)
def test_a_topic_that_lost_a_record_breaks_an_identity(mistake: Mistake):
    dry = Dry().publish(script())
    after = dry.mark()
    mistake(dry)
    assert broken(account(Mark(), after, dry.found(), dry.published))


@pytest.mark.parametrize("what", ["a record of raw", "a dead letter"])
def test_a_lost_message_breaks_the_sum(what: str):
    dry = Dry().publish(script())
    after = dry.mark()
    LOSSES[what](dry)
    assert not account(Mark(), after, dry.found(), dry.published).sum.holds


@pytest.mark.parametrize("name", ["members_taken", "applied", "discarded.clear_of_unknown", "pending", "duplicate"])
@pytest.mark.parametrize("wrong_by", [-1, 1])
def test_a_counter_that_is_wrong_by_one_breaks_the_sum(name: str, wrong_by: int):
    dry = Dry().publish(script())
    after = dry.mark()
    totals, gauges = dict(after.totals), {stage: dict(values) for stage, values in after.gauges.items()}
    for values in (totals, *gauges.values()):
        if name in values:
            values[name] += wrong_by
    assert not account(Mark(), replace(after, totals=totals, gauges=gauges), dry.found(), dry.published).sum.holds


def test_a_row_that_is_not_in_the_table_is_missed():
    dry = Dry().publish(script())
    after = dry.mark()
    found = account(Mark(), replace(after, rows=after.rows - 1), dry.found(), dry.published)
    assert broken(found) == {"writer: rows in the table = inserted"}


def test_batches_that_the_writer_has_not_taken_are_pending():
    """Not drained is not lost."""
    dry = Dry().publish(script())
    after, late = dry.mark(), Dry()
    late.topics["batches"] = dry.topics["batches"][:-2]
    totals = late.mark().totals
    found = account(Mark(), replace(after, totals=totals, rows=totals["inserted"]), dry.found(), dry.published)
    assert found.holds
    assert found.pending > 3


def test_a_writer_that_says_done_but_has_lost_members_breaks_the_sum():
    dry = Dry().publish(script())
    after = dry.mark()
    totals = Counter(after.totals)
    totals["members"] -= 2
    totals["members_taken"] -= 2
    found = account(Mark(), replace(after, totals=totals), dry.found(), dry.published)
    assert not found.sum.holds
    assert "members of batches = members of the writer" in broken(found)


def test_latency_is_from_publishing_to_the_batch_without_the_timeout():
    found = Found(opened=[("te/a///m/x", 100, 3_000), ("te/a///m/y", 100, 3_500), ("te/b///m/x", 5, 9_999)])
    published = {("te/a///m/x", 100): 900, ("te/a///m/y", 100): 1_000}
    assert latencies(found, published, timeout_ms=2_000) == [100, 500]


def test_the_opening_message_of_a_batch_is_the_one_that_opened_it():
    dry = Dry().publish(script())
    opened = {(topic, event_ms) for topic, event_ms, _ in dry.found().opened}
    assert len(opened) == dry.found().batches
    assert ("te/device/cpu///m/usage", START_MS) in opened


def archived(dry: Dry, **wrong: int) -> Mark:
    """The mark after a run of which a second job has written everything, but for what is wrong."""
    after = dry.mark()
    totals = Counter(after.totals)
    totals.update({name: by for name, by in wrong.items() if name != "table"})
    return replace(after, archived=Written(totals, after.rows + wrong.get("table", 0)))


def test_a_second_job_has_identities_of_its_own_and_no_part_in_the_sum():
    dry = Dry().publish(script())
    alone = accounted(dry)
    found = account(Mark(), archived(dry), dry.found(), dry.published)
    assert found.holds
    assert (found.sum, found.archived) == (alone.sum, found.stored)
    assert alone.archived is None
    assert len(found.lines) == len(alone.lines) + 7


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"table": -1}, "archive: rows in the table = inserted"),
        ({"rows": 1}, "archive: rows = inserted + replaced + repeated + refused + postponed"),
        ({"documents": -1}, "batches = documents of the archive"),
        ({"members_taken": 1}, "archive: members = taken + refused"),
    ],
)
def test_a_second_job_that_loses_something_is_found(wrong: dict[str, int], line: str):
    dry = Dry().publish(script())
    found = account(Mark(), archived(dry, **wrong), dry.found(), dry.published)
    assert line in broken(found)
    assert found.sum.holds


def test_the_dead_letters_of_a_second_job_are_its_own():
    """Both jobs refuse the same member: it is one message."""
    dry = Dry().publish(script())
    alone, letter = accounted(dry), json.dumps({"reason": "schema"}).encode()
    headers = [[("id", f"{job}:0:1:0".encode()), ("stage", f"spark.{job}".encode())] for job in ("writer", "archive")]
    dry.topics["dead-letter"] += [FakeRecord(b"te", letter, one, START_MS) for one in headers]
    after = refused(dry.mark(), members_taken=-1, members_rejected=1, **{"dead_letters.schema": 1})
    found = account(Mark(), replace(after, archived=Written(after.totals, after.rows)), dry.found(), dry.published)
    assert found.holds
    assert (found.dead, found.out) == (alone.dead + 1, alone.out - 1)


def test_a_row_that_the_store_refuses_makes_its_member_a_dead_letter():
    dry = Dry().publish(script())
    alone, letter = accounted(dry), json.dumps({"reason": "sink_rejected"}).encode()
    headers = [("id", b"writer:0:1:0"), ("stage", b"spark.writer")]
    dry.topics["dead-letter"].append(FakeRecord(b"te", letter, headers, START_MS))
    after = refused(dry.mark(), inserted=-1, rows_refused=1, **{"dead_letters.sink_rejected": 1})
    found = account(Mark(), replace(after, rows=after.rows - 1), dry.found(), dry.published)
    assert found.holds
    assert (found.dead, found.out) == (alone.dead + 1, alone.out - 1)


def refused(after: Mark, **changes: int) -> Mark:
    totals = Counter(after.totals)
    totals.update(changes)
    return replace(after, totals=totals)
