"""`GET /v1/capacity/{resource}` over a real coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from headrace_api.capacity import CapacityHandler
from headrace_capacity.coordinator import Coordinator, CoordinatorStore
from headrace_core.capacity.protocol import LeaseRequest, ResourceConfig


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    running = Coordinator("t", cold=True).start()
    yield running
    running.stop()


async def get(store: CoordinatorStore | None, path: str, registry: CollectorRegistry | None = None) -> httpx.Response:
    app = Starlette()
    handler = CapacityHandler(None if store is None else store.status, registry or CollectorRegistry())
    app.add_route("/v1/capacity/{name:path}", handler.answer, ["GET"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
        return await client.get(path)


async def test_it_tells_what_the_store_knows_and_shows_it_as_metrics(coordinator: Coordinator) -> None:
    store, registry = CoordinatorStore(coordinator.address, "t"), CollectorRegistry()
    store.provision(ResourceConfig(resource="main db", shared_capacity=100, factor=10))
    store.sync(LeaseRequest(resource="main db", owner="w", seq=1, want=4, used=33, pause_ms=60_000), 10_000)
    answer = await get(store, "/v1/capacity/main%20db", registry)
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["granted"], body["free"], body["used"], body["factor"]) == (200, 40, 60, 33, 1.0)
    assert body["owners"] == [
        {"owner": "w", "want": 4, "share": 4, "partitions": 4, "granted": 40, "used": 33, "reserve": False}
    ]
    sample = {"resource": "main db"}
    assert registry.get_sample_value("headrace_capacity_granted", {**sample, "dimension": ""}) == 40
    assert 0 < (registry.get_sample_value("headrace_capacity_pause_ms", sample) or 0) <= 60_000
    store.close()


async def test_what_is_not_known_is_a_problem_document(coordinator: Coordinator) -> None:
    store = CoordinatorStore(coordinator.address, "t")
    unknown = await get(store, "/v1/capacity/other")
    assert (unknown.status_code, unknown.json()["reason"]) == (404, "unknown_resource")
    without = await get(None, "/v1/capacity/other")
    assert (without.status_code, without.json()["reason"]) == (404, "no_lease_store")
    coordinator.stop()
    away = await get(store, "/v1/capacity/other")
    assert (away.status_code, away.json()["reason"]) == (503, "lease_store_unavailable")
    store.close()
