"""`GET /v1/capacity/{resource}`: what a lease store knows of a shared capacity (capacity.md 19).

The store is asked anew by each request, in a thread; it is not on the way of any other answer. The same numbers are
Prometheus metrics `headrace_capacity_*`: at each scrape the store is asked for the resources that the settings name,
and for those that it was asked for before. What is not answered in time has no numbers then, rather than old ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import msgspec
from prometheus_client import CollectorRegistry, Gauge
from starlette.requests import Request
from starlette.responses import Response

from headrace_api import problems
from headrace_core.capacity.errors import LeaseStoreUnavailable, UnknownResource
from headrace_core.capacity.protocol import Capacity, StoreStatus, by_dimension

PREFIX = "/v1/capacity/"
THREADS = 2
SCRAPE_S = 3.0
"""How long a scrape waits for the store."""
GAUGES = {
    "shared_capacity": "Shared capacity in force, units per second",
    "granted": "Granted to owners, units per second",
    "used": "Spent by owners in the last second, units",
}
PLAIN = {
    "waiting": "Partitions wanted above the shares",
    "pause_ms": "Rest of a pause of the whole resource",
    "factor": "Adaptive factor, 1 = all of it",
    "owners": "Owners that the store knows",
}


class CapacityHandler:
    """`status` asks the store. Without one (`None`) every resource is unknown here. `resources`: those that metrics
    show from the start."""

    def __init__(
        self,
        status: Callable[[str], StoreStatus] | None,
        registry: CollectorRegistry,
        resources: Iterable[str] = (),
    ) -> None:
        self._status = status
        self._watched = set(resources)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="capacity")
        labels = ["resource", "dimension"]
        self._gauges = {
            n: Gauge(f"headrace_capacity_{n}", text, labels, registry=registry) for n, text in GAUGES.items()
        }
        self._plain = {
            n: Gauge(f"headrace_capacity_{n}", text, ["resource"], registry=registry) for n, text in PLAIN.items()
        }
        self._up = Gauge("headrace_capacity_up", "1 = the lease store told of it", ["resource"], registry=registry)

    async def answer(self, request: Request) -> Response:
        """200 with the status, 404 for a resource that is not known, 503 while the store does not answer."""
        path = request.scope["path"]
        name = unquote(path.removeprefix(PREFIX))
        if self._status is None:
            return _problem(404, "no_lease_store", "this API was given no lease store (capacity_store)", path)
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._status, name)
        except UnknownResource:
            return _problem(404, "unknown_resource", f"the lease store knows no resource {name!r}", path)
        except LeaseStoreUnavailable as error:
            return _problem(503, "lease_store_unavailable", str(error), path)
        self._watched.add(found.resource)
        return Response(msgspec.json.encode(document(found)), 200, {"Cache-Control": "no-store"}, "application/json")

    async def refresh(self) -> None:
        """Before a scrape: the numbers of all resources that are watched, as the store knows them now."""
        if self._status is None or not self._watched:
            return
        loop = asyncio.get_running_loop()
        asked = {name: loop.run_in_executor(self._threads, self._status, name) for name in sorted(self._watched)}
        await asyncio.wait(asked.values(), timeout=SCRAPE_S)
        for name, answer in asked.items():
            known = answer.done() and answer.exception() is None
            self._up.labels(name).set(known)
            if known:
                self._show(answer.result())
                continue
            answer.cancel()
            for gauge in (*self._gauges.values(), *self._plain.values()):
                gauge.remove_by_labels({"resource": name})

    def _show(self, found: StoreStatus) -> None:
        for name, gauge in self._gauges.items():
            for dimension, units in by_dimension(getattr(found, name)).items():
                gauge.labels(found.resource, dimension).set(units)
        numbers = {"waiting": found.waiting, "pause_ms": found.pause_ms, "factor": found.factor / 1000}
        for name, value in {**numbers, "owners": len(found.owners)}.items():
            self._plain[name].labels(found.resource).set(value)


def _problem(status: int, reason: str, detail: str, path: str) -> Response:
    headers = {"Retry-After": problems.RETRY_S} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return problems.problem(status, reason, detail, path, headers=headers, type=f"urn:headrace:capacity:{reason}")


def document(found: StoreStatus) -> dict[str, Any]:
    """The answer: capacities in units per second, one number or one by dimension; `factor` 1 = all of it."""
    owners: list[dict[str, Any]] = [msgspec.to_builtins(each) for each in found.owners]
    body: dict[str, Any] = msgspec.to_builtins(found)
    return body | {"factor": found.factor / 1000, "owners": owners, "free": _difference(found)}


def _difference(found: StoreStatus) -> Capacity:
    """Shared and not granted: idle, in quarantine, or wanted by nobody."""
    granted = by_dimension(found.granted)
    left = {name: max(0, units - granted.get(name, 0)) for name, units in by_dimension(found.shared_capacity).items()}
    return left[""] if set(left) == {""} else left
