"""What the lease store says of the resource: asked once a second at most, and no number where there is no answer."""

from __future__ import annotations

from headrace_core.capacity.errors import LeaseStoreUnavailable
from headrace_core.capacity.memory_store import MemoryStore
from headrace_core.capacity.protocol import LeaseRequest, ResourceConfig, StoreStatus
from headrace_spark import capacity
from headrace_spark.leasing import Leasing
from tests.unit.spark.fakes import job


def values(one: Leasing) -> dict[str, float]:
    return {family.name.removeprefix("headrace_spark_"): family.samples[0].value for family in one.collect()}


class Asked:
    def __init__(self, store: MemoryStore) -> None:
        self.store, self.times, self.fails = store, 0, False

    def __call__(self) -> StoreStatus:
        self.times += 1
        if self.fails:
            raise LeaseStoreUnavailable("away")
        return self.store.status("r")


def test_what_all_owners_have_is_told_and_not_asked_for_more_than_once_a_second() -> None:
    store, now = MemoryStore(lambda: 10_000), [0.0]
    store.provision(ResourceConfig(resource="r", shared_capacity=1000, factor=100))
    for name in ("a", "b"):
        store.sync(LeaseRequest(resource="r", owner=name, seq=1, want=3), 1_000)
    asked = Asked(store)
    one = Leasing(asked, 1000, lambda: 7, clock=lambda: now[0])
    found = values(one)
    assert (found["capacity_owners"], found["capacity_pause_seconds"]) == (2, 0)
    assert found["capacity_granted"] == store.status("r").granted == 600
    values(one)
    assert asked.times == 1
    now[0] = 1.0
    values(one)
    assert asked.times == 2


def test_a_store_that_is_away_has_no_numbers_until_it_is_back() -> None:
    store, now = MemoryStore(lambda: 10_000), [0.0]
    store.provision(ResourceConfig(resource="r", shared_capacity=1000, factor=100))
    asked = Asked(store)
    one = Leasing(asked, 1000, lambda: 7, clock=lambda: now[0])
    asked.fails = True
    assert values(one) == {}
    now[0], asked.fails = 2.0, False
    assert values(one)["capacity_owners"] == 0


def test_without_a_store_all_is_this_jobs() -> None:
    assert capacity.status(job()) is None
    assert values(Leasing(None, 400, lambda: 7)) == {
        "capacity_granted": 400,
        "capacity_used": 7,
        "capacity_owners": 1,
    }
