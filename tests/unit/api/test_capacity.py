"""`GET /v1/capacity/{resource}` over a real coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request

from headrace_api import openapi
from headrace_api.capacity import CapacityHandler
from headrace_api.settings import Settings
from headrace_capacity.coordinator import Coordinator, CoordinatorStore
from headrace_core.capacity.protocol import LeaseRequest, ResourceConfig
from headrace_core.errors import ConfigError
from tests.support.status_api import fixture


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    running = Coordinator("t", cold=True).start()
    yield running
    running.stop()


async def get(store: CoordinatorStore | None, path: str) -> httpx.Response:
    app = Starlette()
    handler = CapacityHandler(None if store is None else store.status, CollectorRegistry())
    app.add_route("/v1/capacity/{name:path}", handler.answer, ["GET"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
        return await client.get(path)


async def test_it_tells_what_the_store_knows(coordinator: Coordinator) -> None:
    store = CoordinatorStore(coordinator.address, "t")
    store.provision(ResourceConfig(resource="main db", shared_capacity=100, factor=10))
    store.sync(LeaseRequest(resource="main db", owner="w", seq=1, want=4, used=33, pause_ms=60_000), 10_000)
    answer = await get(store, "/v1/capacity/main%20db")
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["granted"], body["free"], body["used"], body["factor"]) == (200, 40, 60, 33, 1.0)
    assert body["owners"] == [
        {"owner": "w", "want": 4, "share": 4, "partitions": 4, "granted": 40, "used": 33, "reserve": False}
    ]
    store.close()


async def test_metrics_are_as_the_store_knows_it_at_the_scrape(coordinator: Coordinator) -> None:
    """Of what the settings name, of what was asked for before, and never old numbers."""
    store, registry = CoordinatorStore(coordinator.address, "t"), CollectorRegistry()
    for name in ("main db", "other"):
        store.provision(ResourceConfig(resource=name, shared_capacity=100, factor=10))
    handler = CapacityHandler(store.status, registry, ["main db"])

    def shown(name: str, resource: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"headrace_capacity_{name}", {"resource": resource, **labels})

    await handler.refresh()
    assert (shown("granted", "main db", dimension=""), shown("waiting", "other")) == (0, None)
    store.sync(LeaseRequest(resource="main db", owner="w", seq=1, want=14, used=33, pause_ms=60_000), 10_000)
    scope = {"type": "http", "method": "GET", "path": "/v1/capacity/other", "headers": []}
    assert (await handler.answer(Request(scope))).status_code == 200
    await handler.refresh()
    found = [shown(name, "main db", dimension="") for name in ("shared_capacity", "granted", "used")]
    assert found == [100, 100, 33]
    assert [shown(name, "main db") for name in ("waiting", "factor", "owners", "up")] == [4, 1.0, 1, 1]
    assert 0 < (shown("pause_ms", "main db") or 0) <= 60_000
    assert shown("granted", "other", dimension="") == 0
    coordinator.stop()
    await handler.refresh()
    assert (shown("granted", "main db", dimension=""), shown("owners", "main db"), shown("up", "main db")) == (
        None,
        None,
        0,
    )
    store.close()


async def test_the_api_answers_it_as_its_document_says(tmp_path: Path) -> None:
    given = fixture(tmp_path, [])
    given.leases.sync(LeaseRequest(resource="database", owner="w", seq=1, want=40, used=387))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(given.app), base_url="http://api") as client:
        answer = await client.get("/v1/capacity/database")
        missing = await client.get("/v1/capacity/other")
        metrics = await client.get("/metrics")
        refused = await client.put("/v1/capacity/database")
    for body in (answer.json(), openapi.CAPACITY_EXAMPLE):
        jsonschema.validate(body, openapi.SCHEMAS["Capacity"])
    assert (answer.status_code, answer.json()["granted"], answer.json()["free"]) == (200, 400, 100)
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:headrace:capacity:unknown_resource")
    assert refused.status_code == 405
    assert 'headrace_capacity_used{dimension="",resource="database"} 387.0' in metrics.text


def test_the_settings_of_the_lease_store_are_checked(tmp_path: Path) -> None:
    assert Settings().lease_status() is None
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    assert Settings(capacity_store="tcp://h:1", capacity_token_file=tmp_path / "token").lease_status() is not None
    for wrong, named in (
        (Settings(capacity_store="ftp://h"), "capacity_store"),
        (Settings(capacity_store="tcp://h:1"), "capacity_token_file"),
        (Settings(capacity_store="tcp://h:1", capacity_token_file=tmp_path / "none"), "capacity_token_file"),
        (Settings(capacity_store="tcp://h:1", capacity_token_file=tmp_path / "binary"), "capacity_token_file"),
    ):
        with pytest.raises(ConfigError) as found:
            wrong.lease_status()
        assert found.value.field == named


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
