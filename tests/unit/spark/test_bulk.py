"""What bulk requests say, and what every line of the table of answers means (spark-writer.md 7)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.errors import ConfigError
from headrace_spark.sinks.answers import Answer
from headrace_spark.sinks.bulk import body, charged, document_id, read, retry_after_ms, version
from headrace_spark.transforms.rows import Keying, Row

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(metric: str = "m", closed_at: int = 50, batch: int = 1, value: float = 1.5) -> Row:
    return Row("te/device/a//", metric, 7, closed_at, f"{batch:032x}", value, False)


def rows(count: int) -> list[Row]:
    return [row(f"m{number}") for number in range(count)]


def answer(count: int, *found: dict[str, Any], status: int = 200, **headers: str) -> Answer:
    content = json.dumps({"items": [{"index": one} for one in found]}).encode()
    return read(rows(count), status, {name.replace("_", "-"): value for name, value in headers.items()}, content, _NOW)


def became(found: Answer) -> list[str]:
    return [one.became for one in found.verdicts]


def test_the_body_has_an_action_and_a_document_for_each_row() -> None:
    one = row(closed_at=3)
    text = body([one, row("n")])
    assert text.endswith(b"\n")
    action, document, *more = map(json.loads, text.splitlines())
    assert len(more) == 2
    assert action == {"index": {"_id": document_id(one), "version": 3 << 21, "version_type": "external"}}
    assert document == {
        "source": "te/device/a//", "metric": "m", "time_ms": 7, "closed_at": 3, "batch": f"{1:032x}", "value": 1.5,
        "boolean": False,
    }  # fmt: skip


def test_the_document_id_is_of_the_row_id_alone() -> None:
    assert document_id(row(closed_at=1, batch=2, value=3)) == document_id(row())
    assert (
        len({document_id(row("a")), document_id(row("b")), document_id(Row("te", "m", 8, 0, "0" * 32, 0, False))}) == 3
    )


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(st.integers(0, (1 << 42) - 1), st.integers(0, (1 << 128) - 1)),
    st.tuples(st.integers(0, (1 << 42) - 1), st.integers(0, (1 << 128) - 1)),
)
def test_versions_are_in_the_order_of_the_rows_versions(one: tuple[int, int], other: tuple[int, int]) -> None:
    low, high = (row(closed_at=closed, batch=batch) for closed, batch in sorted((one, other)))
    assert 0 <= version(low) <= version(high) < 1 << 63
    if low.closed_at != high.closed_at or int(low.batch, 16) >> 107 != int(high.batch, 16) >> 107:
        assert version(low) < version(high)


def test_a_time_beyond_the_range_has_a_version_all_the_same() -> None:
    assert 0 <= version(row(closed_at=-(2**63))) < version(row(closed_at=2**63 - 1)) < 1 << 63


def test_each_item_has_its_own_verdict() -> None:
    found = answer(
        9,
        {"status": 201}, {"status": 200}, {"status": 200, "result": "created"}, {"status": 200, "result": "noop"},
        {"status": 409}, {"status": 429}, {"status": 503}, {"status": 400, "error": "why"}, {"status": 500},
        retry_after="2",
    )  # fmt: skip
    assert became(found) == [
        "inserted", "replaced", "inserted", "repeat", "repeat", "refused", "refused", "rejected", "unknown",
    ]  # fmt: skip
    assert (found.busy, found.retry_after_ms, found.too_large) == (True, 2000, False)
    assert "why" in found.verdicts[7].detail


def test_an_answer_without_refusals_asks_for_no_pause() -> None:
    found = answer(1, {"status": 201}, retry_after="2")
    assert (found.busy, found.retry_after_ms) == (False, None)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff", b"[]", b"{}", b'{"items": 1}', b'{"items": [1, 2]}', b'{"items": [{}, {}]}', b"[" * 100_000,
        b'{"items": [{"index": {"status": 201}}]}', b'{"items": [{"index": {}}, {"index": {}}]}',
        b'{"items": [{"index": {"status": "201"}}, {"index": {"status": 201}}]}',
        b'{"items": [{"index": {"_id": "other", "status": 201}}, {"index": {"status": 201}}]}',
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_leaves_every_row_unknown(content: bytes) -> None:
    assert became(read(rows(2), 200, {}, content, _NOW)) == ["unknown", "unknown"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_store_pauses_the_resource(status: int) -> None:
    found = read(rows(2), status, {"retry-after": "7"}, b"", _NOW)
    assert (became(found), found.busy, found.retry_after_ms) == (["refused"] * 2, True, 7000)


@pytest.mark.parametrize("status", [408, 425, 500, 502, 504, 507])
def test_other_failures_of_a_server_leave_every_row_unknown(status: int) -> None:
    found = read(rows(2), status, {}, b"", _NOW)
    assert (became(found), found.busy) == (["unknown"] * 2, False)


def test_what_is_too_large_is_told() -> None:
    assert read(rows(2), 413, {}, b"", _NOW) == Answer(too_large=True)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 405])
def test_what_no_request_will_change_is_an_error_of_configuration(status: int) -> None:
    with pytest.raises(ConfigError, match=f"^sink: .*{status}.*no index"):
        read(rows(2), status, {}, b"no index", _NOW)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0), (" 12 ", 12_000), ("Thu, 01 Jan 2026 00:01:00 GMT", 60_000), ("Thu, 01 Jan 2015 00:00:00 GMT", 0),
        ("", None), (None, None), ("soon", None), ("-1", None), ("1.5", None), ("²", None), ("9" * 30, None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(text: str | None, ms: int | None) -> None:
    assert retry_after_ms(text, _NOW) == ms


@pytest.mark.parametrize(
    ("text", "units"),
    [("5", 5), ("5.01", 6), (" 0 ", 0), ("1e2", 100), (None, None), ("", None), ("-1", None), ("NaN", None),
     ("Infinity", None), ("9" * 40, None), ("many", None)],
)  # fmt: skip
def test_a_charge_is_rounded_up_and_what_is_no_number_is_no_charge(text: str | None, units: int | None) -> None:
    assert charged(text) == units


_LATEST = Keying(("source", "metric"))


def test_a_configured_key_is_the_document_id_and_its_version_has_the_event_time() -> None:
    def at(time_ms: int, closed_at: int) -> Row:
        return Row("te/device/a//", "m", time_ms, closed_at, "0" * 32, 1.0, False)

    rising = [at(-5, 0), at(7, 0), at(7, 9), at(8, 9), at(9, 9), at(9, 10), at(2**62, 2**62), at(2**62, 2**63 - 1)]
    assert len({document_id(one, _LATEST) for one in rising}) == 1
    numbers = [version(one, _LATEST) for one in rising]
    assert numbers == sorted(numbers)
    assert len(set(numbers[1:6])) == 4 + (numbers[1] != numbers[2])
    assert 0 <= numbers[0] < numbers[-1] < 1 << 63
    by_close = Keying(("source", "metric"), "closed_at")
    assert [version(one, by_close) for one in (at(9, -1), at(8, 3), at(7, 4))] == [0, 3, 4]
    action = json.loads(body([at(8, 3)], by_close).splitlines()[0])
    assert action["index"]["_id"] == document_id(at(1, 1), by_close) != document_id(at(8, 3))
