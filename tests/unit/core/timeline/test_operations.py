"""Single operations: what the vectors leave out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.core.timeline.driver import Driver

TOP = 2**63 - 1


def test_complete_by_a_consumer_named_like_the_group_that_cancelled_is_not_found() -> None:
    """Section 8.5: only the consumer that completed it."""
    d = Driver()
    d.ok("create", id="a", group="X", timestamp=0)
    d.ok("cancel", id="a", group="X")
    assert d.code("complete", id="a", consumer="X") == "NOT_FOUND"
    assert d.ok("cancel", id="a", group="X")["noop"]


def test_cancel_by_the_owner_of_a_completed_message_is_a_noop() -> None:
    d = Driver()
    d.ok("create", id="a", group="X", timestamp=0)
    d.ok("lease", id="a", consumer="C", lease_ms=50)
    d.ok("complete", id="a", consumer="C")
    assert d.ok("cancel", id="a", group="X", version=1)["noop"]
    assert d.code("cancel", id="a", group="Y") == "NOT_FOUND"


def test_a_holder_call_takes_every_version_of_the_present_lease() -> None:
    """Section 6.5: a heartbeat does not lock out its own worker."""
    d = Driver()
    d.ok("create", id="a", group="P", timestamp=0)
    version = d.ok("lease", id="a", consumer="C", lease_ms=50)["version"]
    d.ok("extend", id="a", consumer="C", lease_ms=60)
    d.ok("extend", id="a", consumer="C", lease_ms=70, version=version)
    answer = d.do("complete", id="a", consumer="C", version=version + 3)
    assert (answer["code"], answer["version"]) == ("VERSION_MISMATCH", version + 2)
    d.ok("complete", id="a", consumer="C", version=version + 1)


@pytest.mark.parametrize("op", ["create", "move", "release"])
def test_a_time_beyond_int64_is_too_far_even_without_a_limit(op: str) -> None:
    d = Driver(max_future_ms=0)
    d.now = 10
    d.ok("create", id="a", group="P", timestamp=0)
    d.ok("lease", id="a", consumer="C", lease_ms=50)
    d.now = 20 if op == "release" else 60
    args = {"id": "b" if op == "create" else "a", "group": "P", "consumer": "C"}
    assert d.code(op, **args, delay_ms=TOP) == "TIMESTAMP_TOO_FAR"
    assert d.code(op, **args, delay_ms=TOP + 1) == "BAD_REQUEST"
    assert d.ok(op, **args, delay_ms=TOP - d.now)["timestamp"] == TOP


WRONG: list[dict[str, Any]] = [
    {"id": None}, {"id": 5}, {"id": "\ud800"}, {"group": "a\x00b"}, {"group": None}, {"body": 5}, {"body": "\ud800"},
    {"headers": []}, {"headers": {"a": 1}}, {"headers": {"a": "\ud800"}}, {"timestamp": 1.0}, {"timestamp": True},
    {"timestamp": None}, {"delay_ms": 0}, {"request_id": ""}, {"request_id": 7},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_the_shape_of_create(wrong: dict[str, Any]) -> None:
    d = Driver()
    args = {"id": "a", "group": "P", "timestamp": 0, **wrong}
    assert d.code("create", **args) == "BAD_REQUEST"
    assert d.ok("owned_by", group="P")["ids"] == []


def test_null_counts_as_missing() -> None:
    d = Driver()
    d.ok("create", id="a", group="P", timestamp=0, delay_ms=None, body=None, headers=None, request_id=None)


def test_a_refusal_is_remembered_too() -> None:
    """Section 8.1."""
    d = Driver(dedup_window_ms=50)
    cancel = {"id": "a", "group": "P", "request_id": "r"}
    assert d.code("cancel", **cancel) == "NOT_FOUND"
    d.ok("create", id="a", group="P", timestamp=0)
    answer = d.do("cancel", **cancel)
    assert (answer["code"], answer["replayed"]) == ("NOT_FOUND", True)
    d.now = 50
    d.ok("cancel", **cancel)


@pytest.mark.parametrize("odd", [2**70, "\ud800", [1, {"x": None}], {"b": 1, "a": 2.5}])
def test_any_arguments_have_a_fingerprint(odd: Any) -> None:
    d = Driver()
    args = {"id": "a", "group": "P", "timestamp": odd, "request_id": "r"}
    assert d.code("create", **args) == "BAD_REQUEST"
    assert d.do("create", **args)["replayed"]
    assert d.code("create", **(args | {"timestamp": 3})) == "REQUEST_ID_REUSED"


def test_the_order_of_arguments_does_not_change_the_fingerprint() -> None:
    d = Driver()
    d.ok("create", id="a", group="P", timestamp=0, headers={"x": "1", "y": "2"}, request_id="r")
    assert d.ok("create", request_id="r", headers={"y": "2", "x": "1"}, timestamp=0, group="P", id="a")["replayed"]


def test_a_message_is_stored_as_the_same_bytes_whatever_the_order_of_records_before() -> None:
    """Deletion leaves nothing behind but a tombstone, and a purge not even that."""
    d = Driver(dedup_window_ms=10)
    empty = {key for key in d.state.snapshot() if key[:1] != b"s"}
    d.ok("create", id="a", group="P", timestamp=90_000_000, body=b"x", headers={"h": "v"})
    d.ok("move", id="a", group="P", timestamp=0)
    d.ok("lease", id="a", consumer="C", lease_ms=50)
    d.ok("release", id="a", consumer="C", delay_ms=40)
    d.ok("cancel", id="a", group="P")
    assert {key[:1] for key in d.state.snapshot()} == {b"s", b"m", b"x"}
    d.now = 10
    d.ok("purge")
    assert {key for key in d.state.snapshot() if key[:1] != b"s"} == empty


def test_an_unknown_operation_is_a_bad_request() -> None:
    assert Driver().code("nonsense") == "BAD_REQUEST"


def test_what_cannot_be_an_id_is_unknown_to_reads() -> None:
    """Section 5: get and read_body have no shape check."""
    for id_ in ("", None, 5, "x" * 256):
        assert Driver().code("get", id=id_) == "NOT_FOUND"
        assert Driver().code("read_body", id=id_, group="P") == "NOT_FOUND"
