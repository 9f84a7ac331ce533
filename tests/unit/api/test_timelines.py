"""Timelines over HTTP on the real engine, without Kafka: the rows of the two tables of timeline.md 17."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace_api.timelines import handler
from headrace_api.timelines.answers import STATUS
from headrace_api.timelines.desk import Command, Letter, letter
from headrace_api.writing import NotSent, TooLarge
from headrace_core.stage import Record
from headrace_core.state import MemoryState
from headrace_core.timeline.settings import Buffer, Settings
from headrace_core.timeline.source import SourceStage
from tests.support.status_api import fixture
from tests.support.timeline_log import TimelineLog

SETTINGS = Settings(partitions=4, bucket_count=8, max_body_bytes=1_000)
GROUP, WORKER = {"X-Producer-Group": "billing"}, {"X-Consumer-Id": "w1"}
MANY = 100_000


class Client:
    """Asks as a client does; `log` has what was written."""

    def __init__(self, path: Path) -> None:
        self.given = fixture(path, [])
        self.log: TimelineLog = self.given.log_of_timelines
        self.log.timelines["jobs"] = SETTINGS
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.given.app))

    async def ask(self, method: str, path: str, sent: Any = None, **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(method, f"http://api/v1/timelines/jobs{path}", json=sent, headers=names)

    async def owner(self, method: str, path: str, sent: Any = None, **headers: str) -> httpx.Response:
        return await self.ask(method, path, sent, **GROUP, **headers)

    async def worker(self, method: str, path: str, sent: Any = None, **headers: str) -> httpx.Response:
        return await self.ask(method, path, sent, **{**WORKER, **headers})

    async def create(self, id_: str, delay_ms: int = 0, **more: Any) -> dict[str, Any]:
        answer = await self.owner("POST", "/messages", {"id": id_, "delay_ms": delay_ms, **more})
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def leased(self, id_: str = "a", lease_ms: int = 60_000, **headers: str) -> str:
        """Create a message that is due, lease it; returns the lease id."""
        await self.create(id_)
        answer = await self.worker("POST", f"/messages/{id_}/lease", {"lease_ms": lease_ms}, **headers)
        assert answer.status_code == 200, answer.text
        found: str = answer.json()["lease_id"]
        return found

    def args(self, op: str) -> list[dict[str, Any]]:
        return [json.loads(dict(one.headers)["tl-args"]) for one in self.log.sent(op)]

    async def configure(self, **settings: Any) -> None:
        assert (await self.ask("PUT", "/", settings)).status_code in (200, 201)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Client]:
    one = Client(tmp_path)
    yield one
    await one.http.aclose()


def refused(answer: httpx.Response, code: str, **members: Any) -> dict[str, Any]:
    """Is it the problem document of this code?"""
    assert (answer.status_code, answer.headers["content-type"]) == (STATUS[code], "application/problem+json")
    found: dict[str, Any] = answer.json()
    assert found["type"] == f"urn:headrace:timeline:{code}"
    assert (found["code"], found["status"]) == (code, STATUS[code])
    assert found["title"]
    assert found["detail"]
    assert {name: found.get(name) for name in members} == members
    return found


# owners


async def test_a_message_is_created_in_the_partition_of_its_id_and_read_by_anyone(api: Client) -> None:
    answer = await api.owner("POST", "/messages", {"id": "bill 7", "delay_ms": 60_000, "headers": {"a": "b"}})
    assert answer.status_code == 201
    body = answer.json()
    assert body == {"id": "bill 7", "version": 1, "timestamp": api.log.now + 60_000, "bucket": body["bucket"],
                    "status": "waiting"}  # fmt: skip
    assert (answer.headers["etag"], answer.headers["x-timeline-now"]) == ('"1"', str(api.log.now))
    assert answer.headers["location"] == "/v1/timelines/jobs/messages/bill%207"
    [letter] = api.log.sent("create")
    assert (letter.key, letter.partition) == (b"bill 7", body["bucket"] % 4)
    names = {name for name, _ in letter.headers}
    assert names == {"tl-op", "tl-args", "tl-request-id", "tl-reply-to", "tl-correlation-id", "tl-instance",
                     "tl-sent-at"}  # fmt: skip
    seen = await api.ask("GET", "/messages/bill%207")
    assert (seen.status_code, seen.headers["etag"]) == (200, '"1"')
    assert {"group": "billing", "leased": False, "headers": {"a": "b"}}.items() <= seen.json().items()


@pytest.mark.parametrize(
    ("sent", "value", "shown"),
    [({"body": "é{"}, "é{".encode(), {"body": "é{"}), ({"body_base64": "/wA="}, b"\xff\0", {"body_base64": "/wA="}),
     ({}, b"", {"body": ""})],
)  # fmt: skip
async def test_a_body_is_the_value_and_only_owner_and_holder_read_it(
    api: Client, sent: dict[str, str], value: bytes, shown: dict[str, str]
) -> None:
    await api.create("a", **sent)
    assert api.log.sent("create")[0].value == value
    assert (await api.owner("GET", "/messages/a/body")).json() == shown
    refused(await api.worker("GET", "/messages/a/body"), "NOT_ALLOWED")
    await api.worker("POST", "/messages/a/lease", {"lease_ms": 1_000})
    assert (await api.worker("GET", "/messages/a/body")).json() == shown


@pytest.mark.parametrize("id_", ["a/b", "ä ö%2F", "x?y#z", "..", "\x01"])
async def test_any_id_works_in_a_path(api: Client, id_: str) -> None:
    place = (await api.owner("POST", "/messages", {"id": id_, "delay_ms": 5})).headers["location"]
    path = place.removeprefix("/v1/timelines/jobs").replace("..", "%2e%2e")
    assert (await api.ask("GET", path)).json()["id"] == id_
    assert (await api.owner("DELETE", path)).status_code == 204
    refused(await api.ask("GET", path), "NOT_FOUND")


async def test_an_id_is_made_anew_or_the_same_one_for_the_same_key(api: Client) -> None:
    made = [(await api.owner("POST", "/messages", {"delay_ms": 5})).json()["id"] for _ in range(2)]
    assert made[0] != made[1]
    assert {id_[14] for id_ in made} == {"7"}
    first = await api.owner("POST", "/messages", {"delay_ms": 5}, Idempotency_Key="k")
    again = await api.owner("POST", "/messages", {"delay_ms": 5}, Idempotency_Key="k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert (first.headers.get("idempotent-replay"), again.headers["idempotent-replay"]) == (None, "true")
    other = await api.ask("POST", "/messages", {"delay_ms": 5}, X_Producer_Group="other", Idempotency_Key="k")
    assert other.json()["id"] != first.json()["id"]


async def test_a_refusal_is_replayed_too_and_a_key_belongs_to_one_request(api: Client) -> None:
    await api.create("a")
    for replay in (None, "true"):
        answer = await api.owner("POST", "/messages", {"id": "a", "delay_ms": 5}, Idempotency_Key="k")
        refused(answer, "ALREADY_EXISTS", deleted=False, same_owner=True)
        assert answer.headers.get("idempotent-replay") == replay
    refused(await api.owner("PATCH", "/messages/a", {"delay_ms": 5}, Idempotency_Key="k"), "REQUEST_ID_REUSED")


async def test_move_and_cancel_check_owner_version_and_lease(api: Client) -> None:
    await api.create("a", 60_000)
    moved = await api.owner("PATCH", "/messages/a", {"timestamp": 5}, If_Match='"1"')
    assert (moved.status_code, moved.headers["etag"]) == (200, '"2"')
    assert moved.json() == {"id": "a", "version": 2, "timestamp": 5, "status": "available"}
    refused(await api.owner("PATCH", "/messages/a", {"delay_ms": 5}, If_Match='"1"'), "VERSION_MISMATCH", version=2)
    refused(await api.owner("DELETE", "/messages/a", If_Match='"1"'), "VERSION_MISMATCH", version=2)
    refused(await api.ask("DELETE", "/messages/a", X_Producer_Group="x"), "NOT_OWNER")
    lease = (await api.worker("POST", "/messages/a/lease", {"lease_ms": 60_000})).json()["lease_id"]
    refused(await api.owner("PATCH", "/messages/a", {"delay_ms": 5}), "LEASE_ACTIVE")
    refused(await api.owner("DELETE", "/messages/a"), "LEASE_ACTIVE")
    await api.worker("POST", f"/leases/{lease}/release", {"delay_ms": 1_000})
    assert [(await api.owner("DELETE", "/messages/a", If_Match="*")).status_code for _ in range(2)] == [204, 204]
    refused(await api.owner("POST", "/messages", {"id": "a", "delay_ms": 5}), "ALREADY_EXISTS", deleted=True)


async def test_a_batch_answers_per_item_in_list_order(api: Client) -> None:
    items = [
        {"op": "create", "id": "a", "delay_ms": 60_000, "body": "x"}, {"op": "move", "id": "a", "delay_ms": 5},
        {"op": "create", "id": "a", "delay_ms": 5}, {"op": "cancel", "id": "b"}, {"op": "lease", "id": "a"},
        {"op": "create", "delay_ms": 5}, {"op": "move", "id": "a", "delay": 5}, 7,
        {"op": "cancel", "id": "a", "version": 1}, {"op": {}},
    ]  # fmt: skip
    answer = await api.owner("POST", "/messages:batch", {"items": items}, Idempotency_Key="k")
    results = answer.json()["results"]
    codes = [None, None, "ALREADY_EXISTS", "NOT_FOUND", "BAD_REQUEST", None, "BAD_REQUEST", "BAD_REQUEST",
             "VERSION_MISMATCH", "BAD_REQUEST"]  # fmt: skip
    assert [one.get("code") for one in results] == codes
    assert [one["ok"] for one in results] == [code is None for code in codes]
    assert [one.get("id") for one in results][:4] == ["a", "a", "a", "b"]
    assert (results[1]["version"], results[8]["version"]) == (2, 2)
    assert answer.headers["x-timeline-now"] == str(api.log.now)
    again = (await api.owner("POST", "/messages:batch", {"items": items}, Idempotency_Key="k")).json()["results"]
    assert [one.pop("replayed", False) for one in again] == [True] * 4 + [False, True, False, False, True, False]
    assert again == results


@pytest.mark.parametrize("items", [[], [{"op": "cancel", "id": "a"}] * 501, {}, None])
async def test_a_batch_has_1_to_500_items(api: Client, items: Any) -> None:
    for path in ("/messages:batch", "/leases:batch"):
        refused(await api.ask("POST", path, {"items": items}, **GROUP, **WORKER), "BAD_REQUEST", limit=500)
    assert len(api.log.letters) == 1  # the timeline was described


async def test_lists_go_over_all_partitions_page_by_page(api: Client) -> None:
    ids = {f"m{n}" for n in range(23)}
    for id_ in ids:
        await api.create(id_, 60_000)
    await api.ask("POST", "/messages", {"id": "other", "delay_ms": 0}, X_Producer_Group="x")
    path, found = "/messages?group=billing&limit=5", list[str]()
    cursor = ""
    while cursor is not None:
        page = (await api.ask("GET", path + (cursor and f"&cursor={cursor}"))).json()
        assert len(page["items"]) <= 5
        found += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(found) == sorted(ids)
    one = (await api.ask("GET", f"/messages?status=available&from=0&to={api.log.now + 1}")).json()
    assert ([item["id"] for item in one["items"]], one["next_cursor"]) == (["other"], None)


@pytest.mark.parametrize(
    "query",
    ["cursor=x", "cursor=kwAB", "limit=0", "limit=1001", "limit=a", "x=1", "limit=1&limit=2", "status=new", "from=-1",
     "to=99999999999999999999", "group=%FF"],
)  # fmt: skip
async def test_a_list_refuses_what_it_does_not_know(api: Client, query: str) -> None:
    refused(await api.ask("GET", f"/messages?{query}"), "BAD_REQUEST")


async def test_a_cursor_is_good_for_its_own_list_only(api: Client) -> None:
    for number in range(4):
        await api.create(f"m{number}")
    cursor = (await api.ask("GET", "/messages?limit=2")).json()["next_cursor"]
    refused(await api.ask("GET", f"/messages?limit=2&group=billing&cursor={cursor}"), "BAD_REQUEST")


async def test_counts_add_up_over_partitions(api: Client) -> None:
    for number in range(9):
        await api.create(f"m{number}", number * 1_000)
    now = api.log.now
    assert (await api.ask("GET", "/counts")).json() == {"total": 9}
    assert (await api.ask("GET", "/counts?status=available")).json() == {"total": 1}
    slots = (await api.ask("GET", f"/counts?from={now}&to={now + 5_500}&step=2000")).json()
    assert slots == {"total": 6, "slots": [2, 2, 2]}
    refused(await api.ask("GET", "/counts?step=5"), "BAD_REQUEST")


async def test_parked_messages_are_listed_and_come_back_by_move(api: Client) -> None:
    await api.configure(max_deliveries=1)
    await api.leased("a", 1_000)
    api.log.now += 1_000
    refused(await api.worker("POST", "/messages/a/lease", {"lease_ms": 1_000}), "DELIVERIES_EXHAUSTED", limit=1)
    assert (await api.worker("POST", "/leases", {"lease_ms": 1_000})).status_code == 204
    page = (await api.ask("GET", "/parked?limit=10")).json()
    assert [(item["id"], item["status"]) for item in page["items"]] == [("a", "parked")]
    answer = await api.worker("POST", "/messages/a/lease", {"lease_ms": 1_000})
    refused(answer, "NOT_AVAILABLE", message_status="parked")
    assert "retry-after" not in answer.headers
    assert (await api.owner("PATCH", "/messages/a", {"delay_ms": 0})).status_code == 200
    assert (await api.ask("GET", "/parked")).json() == {"items": [], "next_cursor": None}


# holders


async def test_a_lease_by_id_has_all_that_the_work_needs(api: Client) -> None:
    due = (await api.create("a", body="x", headers={"h": "1"}))["timestamp"]
    answer = await api.worker("POST", "/messages/a/lease", {"lease_ms": 5_000, "version": 1})
    lease = answer.json()
    expected = {"lease_id": lease["lease_id"], "id": "a", "version": 2, "expires_at": api.log.now + 5_000,
                "due_at": due, "deliveries": 1, "headers": {"h": "1"}, "body": "x"}  # fmt: skip
    assert (lease, answer.headers["etag"]) == (expected, '"2"')
    again = await api.worker("POST", "/messages/a/lease", {"lease_ms": 5_000})
    refused(again, "NOT_AVAILABLE", message_status="processing")
    assert again.headers["retry-after"] == "5"
    api.log.now += 4_001
    assert (await api.worker("POST", "/messages/a/lease", {"lease_ms": 5_000})).headers["retry-after"] == "1"
    refused(await api.worker("POST", "/messages/a/lease", {"lease_ms": 5, "version": 1}, If_Match='"2"'), "BAD_REQUEST")


async def test_a_lease_is_extended_released_and_completed_by_its_id(api: Client) -> None:
    lease = await api.leased()
    extended = await api.worker("PATCH", f"/leases/{lease}", {"lease_ms": 90_000})
    assert extended.json() == {"lease_id": lease, "id": "a", "version": 3, "expires_at": api.log.now + 90_000}
    assert extended.headers["etag"] == '"3"'
    released = await api.worker("POST", f"/leases/{lease}/release", {"delay_ms": 1_000})
    assert released.json() == {"id": "a", "version": 4, "timestamp": api.log.now + 1_000, "status": "waiting"}
    refused(await api.worker("DELETE", f"/leases/{lease}"), "NOT_LEASE_HOLDER")
    api.log.now += 1_000
    second = (await api.worker("POST", "/messages/a/lease", {"lease_ms": 1_000})).json()["lease_id"]
    refused(await api.worker("DELETE", f"/leases/{lease}"), "VERSION_MISMATCH", version=5)  # the earlier grant's
    refused(await api.worker("DELETE", f"/leases/{second}", X_Consumer_Id="w2"), "NOT_LEASE_HOLDER")
    assert [(await api.worker("DELETE", f"/leases/{second}")).status_code for _ in range(2)] == [204, 204]
    refused(await api.worker("PATCH", f"/leases/{second}", {"lease_ms": 1_000}), "NOT_FOUND")


async def test_an_expired_holder_is_told_so(api: Client) -> None:
    lease = await api.leased("a", 1_000)
    api.log.now += 1_000
    refused(await api.worker("PATCH", f"/leases/{lease}", {"lease_ms": 1_000}), "LEASE_EXPIRED")


@pytest.mark.parametrize("lease", ["x", "kwAB", "!", "k" * 5_000, "k8Cp", "kwWhYQE"])
async def test_what_is_no_lease_id_is_refused_before_the_log(api: Client, lease: str) -> None:
    refused(await api.worker("DELETE", f"/leases/{lease}"), "BAD_REQUEST")
    assert api.log.sent("complete") == []


async def test_a_restarted_consumer_finds_its_leases_by_expiry_and_goes_on(api: Client) -> None:
    await api.leased("b", 60_000)
    await api.leased("a", 30_000)
    await api.leased("c", 10_000, X_Consumer_Id="w2")
    leases = (await api.worker("GET", "/leases")).json()["leases"]
    assert [lease["id"] for lease in leases] == ["a", "b"]
    assert (await api.worker("DELETE", f"/leases/{leases[0]['lease_id']}")).status_code == 204


async def test_holders_work_in_batches(api: Client) -> None:
    held = [await api.leased(id_) for id_ in "abc"]
    items = [{"op": "extend", "lease_id": held[0], "lease_ms": 5_000}, {"op": "complete", "lease_id": held[1]},
             {"op": "release", "lease_id": held[2], "delay_ms": 100}, {"op": "complete", "lease_id": "x"}]  # fmt: skip
    results = (await api.worker("POST", "/leases:batch", {"items": items})).json()["results"]
    assert [(one.get("id"), one["ok"]) for one in results] == [("a", True), ("b", True), ("c", True), (None, False)]
    assert [one["lease_id"] for one in results] == [*held, "x"]
    assert results[3]["code"] == "BAD_REQUEST"


# polls


async def test_a_poll_takes_what_is_due_from_all_partitions_up_to_its_limit(api: Client) -> None:
    for number in range(12):
        await api.create(f"m{number}", body="x" * number)
    first = (await api.worker("POST", "/leases", {"lease_ms": 60_000})).json()
    assert (len(first["leases"]), first["has_more"]) == (10, True)
    assert all(len(lease["body"]) == int(lease["id"][1:]) for lease in first["leases"])
    second = (await api.worker("POST", "/leases", {"lease_ms": 60_000, "limit": 5})).json()
    assert (len(second["leases"]), second["has_more"]) == (2, False)
    third = await api.worker("POST", "/leases", {"lease_ms": 60_000})
    assert (third.status_code, third.content) == (204, b"")
    assert {lease["id"] for lease in first["leases"] + second["leases"]} == {f"m{n}" for n in range(12)}


async def test_a_poll_asks_only_the_partitions_of_its_buckets(api: Client) -> None:
    bucket = (await api.create("a"))["bucket"]
    other = (bucket + 1) % 8
    assert (await api.worker("POST", "/leases", {"lease_ms": 500, "buckets": [other]})).status_code == 204
    assert [one.partition for one in api.log.sent("poll")] == [other % 4]
    assert len((await api.worker("POST", "/leases", {"lease_ms": 500, "buckets": [bucket]})).json()["leases"]) == 1


async def test_a_repeated_poll_says_the_same(api: Client) -> None:
    for number in range(6):
        await api.create(f"m{number}")
    wish = {"lease_ms": 60_000, "limit": 4}
    first = await api.worker("POST", "/leases", wish, Idempotency_Key="k")
    again = await api.worker("POST", "/leases", wish, Idempotency_Key="k")
    assert (len(first.json()["leases"]), again.json()) == (4, first.json())
    assert (first.headers.get("idempotent-replay"), again.headers["idempotent-replay"]) == (None, "true")


@pytest.mark.parametrize(
    "wish",
    [{}, {"lease_ms": 500, "expires_at": MANY}, {"lease_ms": 500, "limit": 0}, {"lease_ms": 500, "limit": 501},
     {"lease_ms": 500, "buckets": []}, {"lease_ms": 500, "buckets": [8]}, {"expires_at": 2_000_000, "wait_ms": 5},
     {"lease_ms": 500, "wait_ms": 30_001}, {"lease_ms": 500, "wait": 5}, {"lease_ms": "1"}],
)  # fmt: skip
async def test_a_poll_of_a_wrong_shape_is_refused(api: Client, wish: dict[str, Any]) -> None:
    refused(await api.worker("POST", "/leases", wish), "BAD_REQUEST")


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_waiting_poll_is_woken_by_any_partition_and_the_others_are_withdrawn(api: Client) -> None:
    api.log.patience_s = None
    waits = asyncio.create_task(api.worker("POST", "/leases", {"lease_ms": 60_000, "limit": 2, "wait_ms": 30_000}))
    await until(lambda: len(api.log.sent("poll")) == 8)
    await api.create("a", 1_000)
    api.log.now += 1_000
    api.log.tick()
    leases = (await waits).json()["leases"]
    assert [lease["id"] for lease in leases] == ["a"]
    assert leases[0]["expires_at"] == api.log.now + 60_000
    assert [json.loads(dict(one.headers)["tl-args"])["limit"] for one in api.log.sent("poll")[4:]] == [1] * 4
    assert len(api.log.sent("unwait")) == 3


async def test_a_surplus_of_waiting_polls_is_given_back(api: Client) -> None:
    api.log.patience_s = None
    for number in range(12):
        await api.create(f"m{number}", 1_000)
    waits = asyncio.create_task(api.worker("POST", "/leases", {"lease_ms": 60_000, "limit": 2, "wait_ms": 30_000}))
    await until(lambda: len(api.log.sent("poll")) == 8)
    api.log.now += 1_000
    api.log.tick()
    answer = (await waits).json()
    assert (len(answer["leases"]), answer["has_more"]) == (2, True)
    assert len(api.log.sent("give_back")) == 2
    assert (await api.ask("GET", "/counts?status=processing")).json() == {"total": 2}
    assert (await api.ask("GET", "/counts?status=available")).json() == {"total": 10}


async def test_a_poll_that_waited_in_vain_has_nothing(api: Client) -> None:
    api.log.patience_s = None
    waits = asyncio.create_task(api.worker("POST", "/leases", {"lease_ms": 60_000, "wait_ms": 1_000}))
    await until(lambda: len(api.log.sent("poll")) == 8)
    api.log.now += 1_000
    api.log.tick()
    assert (await waits).status_code == 204
    assert api.log.sent("unwait") == []


async def polls_and_leaves(api: Client, gone: asyncio.Event, wish: dict[str, Any]) -> None:
    """A client that closes its connection when `gone` is set."""
    body = json.dumps(wish).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        return None

    path = "/v1/timelines/jobs/leases"
    await api.given.app(
        {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
         "headers": [(b"x-consumer-id", b"w1")], "http_version": "1.1", "scheme": "http", "server": ("x", 1),
         "client": ("x", 2), "root_path": ""},
        receive, send,
    )  # fmt: skip


async def test_a_closed_connection_withdraws_its_waiters_and_gives_back_what_it_was_granted(api: Client) -> None:
    api.log.patience_s = None
    gone = asyncio.Event()
    wish = {"lease_ms": 60_000, "wait_ms": 30_000}
    waits = asyncio.create_task(polls_and_leaves(api, gone, wish))
    await until(lambda: len(api.log.sent("poll")) == 8)
    gone.set()
    await waits
    assert len(api.log.sent("unwait")) == 4
    await api.create("a")
    api.log.tick()
    assert (await api.ask("GET", "/messages/a")).json()["status"] == "available"
    gone.set()
    await polls_and_leaves(api, gone, {"lease_ms": 60_000})
    seen = (await api.ask("GET", "/messages/a")).json()
    assert (seen["status"], seen["deliveries"]) == ("available", 0)


async def test_the_end_of_the_service_withdraws_waiters(api: Client) -> None:
    api.log.patience_s = None
    waits = asyncio.create_task(api.worker("POST", "/leases", {"lease_ms": 60_000, "wait_ms": 30_000}))
    await until(lambda: len(api.log.sent("poll")) == 8)
    api.given.timelines.close()
    assert (await waits).status_code == 204
    assert len(api.log.sent("unwait")) == 4


async def test_what_was_granted_is_told_though_a_partition_is_silent(api: Client) -> None:
    bucket = (await api.create("a"))["bucket"]
    api.log.dead = {(bucket + 1) % 4}
    assert len((await api.worker("POST", "/leases", {"lease_ms": 60_000})).json()["leases"]) == 1
    refused(await api.worker("POST", "/leases", {"lease_ms": 60_000}), "UNKNOWN_OUTCOME")


async def test_bodies_of_a_poll_are_at_most_900_kb_together(api: Client) -> None:
    await api.configure(max_body_bytes=1_000_000)
    for number in range(3):
        await api.create(f"m{number}", body="x" * 400_000)
    leases = (await api.worker("POST", "/leases", {"lease_ms": 60_000})).json()["leases"]
    assert sorted("body" in lease for lease in leases) == [False, True, True]
    [left_out] = [lease for lease in leases if "body" not in lease]
    assert left_out["body_omitted"]
    assert len((await api.worker("GET", f"/messages/{left_out['id']}/body")).json()["body"]) == 400_000


# the whole


async def test_settings_are_shown_and_changed_in_every_partition(api: Client) -> None:
    shown = (await api.ask("GET", "/")).json()
    assert shown["name"] == "jobs"
    assert shown["settings"]["max_body_bytes"] == 1_000
    state = {"now": api.log.now, "degraded": False, "frozen": False}
    owners = [None, "w1@host", None, "w3@host"]
    assert shown["partitions"] == [{"partition": n, "owner": owner, **state} for n, owner in enumerate(owners)]
    assert (await api.ask("PUT", "", {"max_body_bytes": 7})).json()["settings"]["max_body_bytes"] == 7
    assert [one.partition for one in api.log.sent("configure")] == [0, 1, 2, 3]
    refused(await api.ask("PUT", "/", {"partitions": 8}), "SETTING_IMMUTABLE", setting="partitions")
    refused(await api.ask("PUT", "/", {"max_pole": 8}), "BAD_REQUEST")
    refused(await api.owner("POST", "/messages", {"delay_ms": 1, "body": "12345678"}), "BODY_TOO_LARGE", limit=7)


async def test_the_first_put_creates_a_timeline_in_its_log_and_what_a_deployment_says_later_is_not_heard(
    api: Client,
) -> None:
    refused(await api.ask("PUT", "/", {"max_pole": 8}), "BAD_REQUEST")
    first, again = [await api.ask("PUT", "/", {"max_poll": 7}) for _ in range(2)]
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.headers["location"] == "/v1/timelines/jobs"
    assert first.json() == again.json() == {"name": "jobs", "settings": first.json()["settings"]}
    wanted = first.json()["settings"]
    assert {"max_poll": 7, "max_body_bytes": 1_000}.items() <= wanted.items()
    api.log.deploy("jobs", Settings(partitions=4, bucket_count=8, max_body_bytes=5, max_poll=5))
    assert (await api.ask("GET", "/")).json()["settings"] == wanted
    assert (await api.owner("POST", "/messages", {"delay_ms": 1, "body": "123456"})).status_code == 201


async def test_a_put_that_did_not_reach_all_partitions_is_done_by_its_repeat(api: Client) -> None:
    api.log.dead.add(2)
    refused(await api.ask("PUT", "/", {"max_poll": 7}), "UNKNOWN_OUTCOME")
    api.log.dead.clear()
    assert (await api.ask("PUT", "/", {"max_poll": 7})).status_code == 200
    assert [api.log.settings("jobs", number).max_poll for number in range(4)] == [7] * 4


async def test_a_timeline_that_nobody_serves_is_not_created_and_the_answer_says_what_would(api: Client) -> None:
    answer = await api.http.request("PUT", "http://api/v1/timelines/others", json={"max_poll": 7})
    assert "HEADRACE_STREAMS_TIMELINES" in refused(answer, "UNKNOWN_TIMELINE")["detail"]
    assert not api.log.letters


async def test_a_timeline_is_dropped_unless_a_lease_is_active(api: Client) -> None:
    lease = await api.leased("a")
    await api.create("b")
    refused(await api.ask("DELETE", "/"), "LEASE_ACTIVE", ids=["a"])
    await api.create("c")  # not frozen
    await api.worker("DELETE", f"/leases/{lease}")
    assert (await api.ask("DELETE", "/")).status_code == 204
    assert (await api.ask("GET", "/counts")).json() == {"total": 0}
    await api.create("b")


async def test_a_frozen_timeline_changes_nothing(api: Client) -> None:
    api.log.lost.add("drop")  # the worker died before it could drop
    api.log.fails["drop"] = NotSent("Kafka does not take it")
    refused(await api.ask("DELETE", "/"), "LOG_UNAVAILABLE")
    refused(await api.owner("POST", "/messages", {"delay_ms": 1}), "FROZEN")


async def test_consumers_are_dealt_buckets(api: Client) -> None:
    first = (await api.ask("PUT", "/consumers/w%2F1", {})).json()
    assert first["buckets"] == list(range(8))
    assert (await api.ask("PUT", "/consumers/w2")).json()["buckets"] == [4, 5, 6, 7]
    refused(await api.ask("PUT", "/consumers/w%2F1"), "ALREADY_SUBSCRIBED")
    kept = (await api.ask("PUT", "/consumers/w%2F1", {"token": first["token"]})).json()
    assert kept == {"token": first["token"], "buckets": [0, 1, 2, 3]}
    assert (await api.ask("DELETE", "/consumers/w2")).status_code == 204
    refused(await api.ask("DELETE", "/consumers/w2"), "NOT_SUBSCRIBED")


async def test_a_ping_tells_when_it_came_when_it_was_answered_and_the_logs_time(api: Client) -> None:
    answer = (await api.ask("POST", "/clock:ping", {"t0": 5})).json()
    assert (answer["t0"], answer["now"]) == (5, api.log.now)
    assert answer["t1"] <= answer["t2"]
    refused(await api.ask("POST", "/clock:ping", {}), "BAD_REQUEST")


async def test_a_degraded_timeline_grants_nothing(api: Client) -> None:
    await api.create("a")
    for number in range(4):
        api.log.apply(letter("jobs", Command("clock", {"offsets": [5_000]}, number), "me", "x", 0))
    refused(await api.worker("POST", "/leases", {"lease_ms": 500}), "DEGRADED")
    answer = await api.worker("POST", "/messages/a/lease", {"lease_ms": 500})
    refused(answer, "DEGRADED")
    assert answer.headers["retry-after"] == "1"


# what is refused, by whom


@pytest.mark.parametrize(
    ("sent", "code"),
    [({"timestamp": 2**62}, "TIMESTAMP_TOO_FAR"), ({"delay_ms": 1, "body": "x" * 1_001}, "BODY_TOO_LARGE"),
     ({}, "BAD_REQUEST"), ({"delay_ms": 1, "timestamp": 1}, "BAD_REQUEST"), ({"delay_ms": 2**70}, "BAD_REQUEST"),
     ({"delay_ms": 1.5}, "BAD_REQUEST"), ({"delay_ms": 1, "delay": 1}, "BAD_REQUEST"), ([], "BAD_REQUEST"),
     ({"delay_ms": 1, "body": {}}, "BAD_REQUEST"), ({"delay_ms": 1, "body_base64": "%"}, "BAD_REQUEST"),
     ({"delay_ms": 1, "body": "", "body_base64": ""}, "BAD_REQUEST"), ({"delay_ms": 1, "id": ""}, "BAD_REQUEST"),
     ({"delay_ms": 1, "id": "x" * 256}, "BAD_REQUEST"), ({"delay_ms": 1, "headers": {"a": 1}}, "BAD_REQUEST"),
     ({"delay_ms": 1, "group": "x"}, "BAD_REQUEST")],
)  # fmt: skip
async def test_a_create_that_cannot_be_is_refused(api: Client, sent: Any, code: str) -> None:
    refused(await api.owner("POST", "/messages", sent), code)


async def test_times_of_a_lease_have_their_limits(api: Client) -> None:
    lease = await api.leased("a")
    refused(await api.worker("PATCH", f"/leases/{lease}", {"lease_ms": 5}), "TIMESTAMP_TOO_SOON", limit=5)
    refused(await api.worker("PATCH", f"/leases/{lease}", {"lease_ms": 300_001}), "LEASE_TOO_LONG", limit=300_000)


async def test_calls_need_to_say_for_whom(api: Client) -> None:
    refused(await api.ask("POST", "/messages", {"delay_ms": 1}), "BAD_REQUEST")
    refused(await api.ask("POST", "/leases", {"lease_ms": 500}), "BAD_REQUEST")
    refused(await api.owner("PATCH", "/messages/a", {"delay_ms": 5}, If_Match='"a"'), "BAD_REQUEST")
    refused(await api.worker("DELETE", f"/leases/{await api.leased()}", If_Match='"1"'), "BAD_REQUEST")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [("GET", "/nothing", "NOT_FOUND"), ("GET", "/messages/", "NOT_FOUND"), ("GET", "/messages/%FF", "BAD_REQUEST"),
     ("PUT", "/messages/a", "METHOD_NOT_ALLOWED"), ("GET", "/leases/x/release", "METHOD_NOT_ALLOWED"),
     ("POST", "/messages?x=1", "BAD_REQUEST"), ("GET", "2/messages", "UNKNOWN_TIMELINE")],
)  # fmt: skip
async def test_what_is_not_there_is_a_problem_document(api: Client, method: str, path: str, code: str) -> None:
    answer = await api.ask(method, path)
    refused(answer, code)
    assert ("allow" in answer.headers) == (code == "METHOD_NOT_ALLOWED")


async def test_options_say_what_is_possible(api: Client) -> None:
    answer = await api.ask("OPTIONS", "/messages/a")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, HEAD, PATCH, DELETE, OPTIONS")
    assert (await api.ask("HEAD", "/counts")).status_code == 200


async def test_bodies_that_are_no_json_or_too_large_are_refused(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://api/v1/timelines/jobs/messages"
    for raw in (b"{", b"\xff", b'{"delay_ms": 1, "delay_ms": 2}', b'{"delay_ms": NaN}'):
        refused(await api.http.post(url, content=raw, headers=GROUP), "BAD_REQUEST")
    refused(await api.http.post(url, content=b"1", headers={**GROUP, "Content-Type": "text/plain"}), "BAD_REQUEST")
    monkeypatch.setattr(handler, "MOST_BYTES", 10)
    refused(await api.owner("POST", "/messages", {"delay_ms": 1}), "BODY_TOO_LARGE", limit=10)


async def test_a_client_may_send_so_many_requests_a_second(api: Client) -> None:
    await api.configure(client_rate=2)
    answers = [await api.owner("GET", "/counts") for _ in range(12)]
    assert {answer.status_code for answer in answers[:2]} == {200}
    limited = [answer for answer in answers if answer.status_code == 429]
    refused(limited[0], "RATE_LIMITED", limit=2)
    assert limited[0].headers["retry-after"] == "1"
    assert (await api.worker("GET", "/leases")).status_code == 200  # another client


async def test_no_reply_is_an_unknown_outcome_and_the_same_key_finds_it_out(api: Client) -> None:
    await api.ask("GET", "/counts")
    api.log.lost.add("create")
    sent = {"id": "a", "delay_ms": 5}
    refused(await api.owner("POST", "/messages", sent, Idempotency_Key="k"), "UNKNOWN_OUTCOME")
    api.log.lost.clear()
    again = await api.owner("POST", "/messages", sent, Idempotency_Key="k")
    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")


async def test_what_kafka_does_not_take_has_no_effect(api: Client) -> None:
    await api.ask("GET", "/counts")
    api.log.fails = {"create": NotSent("no"), "move": TooLarge("too large")}
    refused(await api.owner("POST", "/messages", {"delay_ms": 5}), "LOG_UNAVAILABLE")
    refused(await api.owner("PATCH", "/messages/a", {"delay_ms": 5}), "BODY_TOO_LARGE", limit=1_000)
    api.log.closed = "Kafka does not answer"
    answer = await api.ask("GET", "/counts")
    assert "Kafka does not answer" in refused(answer, "LOG_UNAVAILABLE")["detail"]
    assert answer.headers["retry-after"] == "1"


async def test_a_timeline_whose_worker_is_away_recovers(api: Client) -> None:
    api.log.dead = {0, 1, 2, 3}
    answer = await api.owner("POST", "/messages", {"delay_ms": 5})
    refused(answer, "RECOVERING")
    assert api.log.sent("create") == []


async def test_a_timeline_is_shown_though_a_partition_of_it_recovers(api: Client) -> None:
    await api.create("a")
    api.log.dead = {3}
    shown = (await api.ask("GET", "/")).json()
    assert [one.get("code") for one in shown["partitions"]] == [None, None, None, "UNKNOWN_OUTCOME"]
    assert shown["partitions"][3] == {"partition": 3, "owner": "w3@host", "code": "UNKNOWN_OUTCOME"}
    api.log.dead = {0, 1, 2, 3}
    refused(await api.ask("GET", "/"), "UNKNOWN_OUTCOME")


async def test_partitions_that_do_not_answer_are_named_until_they_do(api: Client) -> None:
    async def recovering() -> list[str]:
        found: list[str] = (await api.http.get("http://api/readyz")).json()["recovering"]
        return found

    bucket = (await api.create("a"))["bucket"]
    api.log.dead = {bucket % 4}
    refused(await api.ask("GET", "/counts"), "UNKNOWN_OUTCOME")
    assert await recovering() == [f"jobs-{bucket % 4}"]
    assert (await api.ask("GET", "/messages/a")).status_code == 504
    api.log.dead = set()
    assert (await api.ask("GET", "/messages/a")).status_code == 200
    assert await recovering() == []


async def test_too_many_open_requests_are_refused(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "MOST_OPEN", 0)
    refused(await api.ask("GET", "/counts"), "OVERLOADED", limit=0)


async def test_a_time_buffer_is_listed_and_cancelled_but_not_polled(api: Client) -> None:
    settings = Settings(partitions=4, bucket_count=8, buffer=Buffer(source="in", target="out", delay_ms=60_000))
    api.log.timelines["jobs"] = settings
    emitted: list[Any] = []
    record = Record(3, 8, api.log.now, b"k", b"v")
    SourceStage(settings, "jobs", "h.in").apply(MemoryState(), record, emitted.append)
    [one] = emitted
    api.log.apply(Letter(one.topic, one.partition, one.key, one.value, list(one.headers)))
    assert [item["id"] for item in (await api.ask("GET", "/messages")).json()["items"]] == ["h.in-3-8"]
    refused(await api.worker("POST", "/leases", {"lease_ms": 500}), "NOT_ALLOWED")
    answer = await api.ask("DELETE", "/messages/h.in-3-8", X_Producer_Group="buffer")
    assert answer.status_code == 204, answer.text
    assert (await api.ask("GET", "/counts")).json() == {"total": 0}


async def test_calls_are_counted_and_timed(api: Client) -> None:
    await api.create("a")
    await api.ask("GET", "/messages/a")
    text = (await api.http.get("http://api/metrics")).text
    assert 'headrace_api_timeline_calls_total{call="GET /messages/{}",status="200"} 1.0' in text
    assert 'headrace_api_timeline_seconds_count{call="POST /messages"} 1.0' in text
    assert "headrace_api_timeline_open 0.0" in text


def test_every_code_of_the_table_has_its_status() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spec" / "timeline.md").read_text().partition("| status | codes |")[2]
    found = {}
    for line in text.splitlines()[2:8]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for status, codes in zip(cells[::3], cells[1::3], strict=True):
            found |= dict.fromkeys(re.findall(r"\b[A-Z]{3}[A-Z_]+\b", codes), int(status))
    assert found.items() <= STATUS.items()
    assert set(STATUS) - set(found) == {"METHOD_NOT_ALLOWED"}
