"""The contract of the lease stores where it applies to blobs (capacity.md 16), against Azurite.

Blob leases last 15 s at least; only one test waits for the end of one.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace_capacity.blob import AzureBlobStore
from headrace_core.capacity.batcher import Batcher
from headrace_core.capacity.config import AZURE_BLOB_LEASE
from headrace_core.capacity.errors import BatcherError, CapacityConfig, LeaseStoreUnavailable, UnknownResource
from headrace_core.capacity.operation import Operation, Watcher
from headrace_core.capacity.protocol import Claim, LeaseReply, LeaseRequest, ResourceConfig
from headrace_core.capacity.resources import SharedResource
from tests.support.lease_servers import azurite, black_hole

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]
LIMIT_MS = 20_000


@pytest.fixture(scope="module")
def connection() -> Iterator[str]:
    with azurite() as found:
        yield found


@dataclass
class Owner:
    store: AzureBlobStore
    resource: str
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    seq: int = 0
    held: tuple[Claim, ...] = ()

    def sync(self, want: int, **rest: Any) -> LeaseReply:
        self.seq += 1
        members = {"held": self.held, **rest}
        request = LeaseRequest(resource=self.resource, owner=self.name, seq=self.seq, want=want, **members)
        reply = self.store.sync(request, LIMIT_MS)
        self.held = tuple(Claim(grant.partition, grant.epoch) for grant in reply.grants)
        return reply

    def sync_until(self, count: int, want: int) -> LeaseReply:
        deadline = time.monotonic() + 90
        while len((reply := self.sync(want)).grants) != count:
            assert time.monotonic() < deadline, reply
            time.sleep(0.2)
        return reply


@pytest.fixture
def owner(connection: str) -> Callable[..., Owner]:
    name = f"r{uuid.uuid4().hex[:8]}"

    def make(**config: Any) -> Owner:
        store = AzureBlobStore(connection, "leases", max_interval_ms=10, call_timeout_ms=10_000)
        members = {"shared_capacity": 40, "factor": 10, "ttl_ms": 15_000, **config}
        store.provision(ResourceConfig(resource=name, **members))
        return Owner(store, name)

    return make


def test_provisioning_tells_what_it_made_and_what_was_there(connection: str) -> None:
    told: list[tuple[str, int]] = []
    config = ResourceConfig(resource="told", shared_capacity=20, factor=10, ttl_ms=15_000)
    for _ in range(2):
        container = "told-container"
        store = AzureBlobStore(connection, container)
        store.tell(lambda *event: told.append(event))
        store.provision(config)
    made, found = told[:3], told[3:]
    assert made == [("created-container", 0), ("created-blob", 0), ("created-blob", 1)]
    assert found == [("verified-container", 0), ("verified-blob", 0), ("verified-blob", 1)]


def test_a_partition_counts_only_a_quarantine_after_it_was_acquired(owner: Callable[..., Owner]) -> None:
    first = owner(quarantine_ms=60_000)
    reply = first.sync(4)
    assert reply.grants == ()
    assert 0 < reply.next_sync_ms <= 60_000
    assert first.store.status(first.resource).granted == 40, "the leases are taken all the same"


def test_two_owners_never_hold_the_same_partition(owner: Callable[..., Owner]) -> None:
    first, second = owner(), owner()
    first.sync_until(3, 3)
    second.sync_until(1, 4)
    assert not {claim.partition for claim in first.held} & {claim.partition for claim in second.held}
    assert first.store.status(first.resource).granted == 40
    assert len(first.sync(3).grants) == 3, "renewed"
    denied = second.sync(4).denied  # type: ignore[attr-defined]
    assert {*denied} <= {claim.partition for claim in first.held}
    assert denied


def test_a_resource_over_blobs_tells_its_listeners_what_it_made_and_what_others_have(connection: str) -> None:
    """The batcher over two stores: the second owner wants what the first one has."""
    told: list[tuple[str, int]] = []
    batchers, members = [], {"shared_capacity": 40, "factor": 10, "lease": AZURE_BLOB_LEASE, "name": "listened"}
    for _ in range(2):
        resource = SharedResource(AzureBlobStore(connection, "listened", max_interval_ms=10), **members)
        batchers.append(Batcher(resource, buffer_size=10))
    batchers[1].add_listener(lambda event: told.append((event.name, event.val)))
    watcher = Watcher(lambda _batch: None)
    deadline = time.monotonic() + 90
    batchers[0].start()
    while len(batchers[0]._core.limiter.held()) < 4:  # type: ignore[union-attr]
        with contextlib.suppress(BatcherError):
            batchers[0].enqueue(Operation(watcher, 40, None), timeout_ms=0)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    batchers[1].start()
    batchers[1].enqueue(Operation(watcher, 40, None))
    while not {("failed", index) for index in range(4)} & set(told):
        with contextlib.suppress(BatcherError):
            batchers[0].enqueue(Operation(watcher, 40, None), timeout_ms=0)
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    for batcher in batchers:
        batcher.stop(drain_timeout_ms=0)
    assert ("verified-container", 0) in told
    assert {index for name, index in told if name == "verified-blob"} == {0, 1, 2, 3}


def test_what_is_released_goes_to_another_one(owner: Callable[..., Owner]) -> None:
    first, second = owner(), owner()
    first.sync_until(4, 4)
    released, first.held = first.held, ()
    assert first.sync(0, released=released).grants == ()
    assert first.sync(0, held=(), released=released).grants == (), "a repeated release is harmless"
    second.sync_until(4, 4)
    stale = released[0]
    assert first.sync(0, held=(stale,)).drop == (stale,), "the lease is another's now"


def test_what_a_lost_reply_granted_is_granted_again_and_old_numbers_change_nothing(owner: Callable[..., Owner]) -> None:
    first = owner()
    granted = first.sync_until(2, 2).grants
    first.held = ()
    assert first.sync(2).grants == granted
    first.seq -= 1
    assert first.sync(2).stale


def test_a_lease_that_is_not_renewed_goes_to_another_one(owner: Callable[..., Owner]) -> None:
    first, second = owner(), owner()
    first.sync_until(4, 4)
    lost = first.held
    second.sync_until(4, 4)
    assert set(first.sync(4, held=lost).drop) == set(lost)


def test_what_blobs_cannot_do_is_refused_by_name(owner: Callable[..., Owner], connection: str) -> None:
    first = owner()
    with pytest.raises(CapacityConfig) as wrong:
        first.store.configure(first.resource, shared_capacity=10)
    assert wrong.value.field == "shared_capacity"
    with pytest.raises(CapacityConfig) as wrong:
        first.store.provision(ResourceConfig(resource="short", shared_capacity=10, factor=10, ttl_ms=5_000))
    assert wrong.value.field == "ttl_ms"
    first.sync(0)
    with pytest.raises(CapacityConfig) as wrong:
        Owner(first.store, first.resource).sync(0)
    assert wrong.value.field == "owner"
    with pytest.raises(UnknownResource):
        AzureBlobStore(connection, "leases").status("unknown")


@pytest.mark.parametrize("other", [{"shared_capacity": 80}, {"factor": 20}, {"shared_capacity": 30}])
def test_an_owner_with_another_capacity_is_refused(owner: Callable[..., Owner], other: dict[str, Any]) -> None:
    """It would take its own worth for each blob, and the sum of all be above the capacity of both."""
    first = owner()
    with pytest.raises(CapacityConfig, match=r'made for \{"factor": 10, "shared_capacity": 40\}, not for') as wrong:
        owner(**other)
    assert wrong.value.field == "shared_capacity"
    assert len(first.sync_until(4, 4).grants) == 4
    owner(ttl_ms=20_000)


def test_an_unreachable_service_is_an_error_and_never_a_grant(owner: Callable[..., Owner]) -> None:
    known = owner()
    with black_hole() as port:
        away = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=YQ==;BlobEndpoint=http://127.0.0.1:{port}/a;"
        store = AzureBlobStore(away, "leases", provision_timeout_ms=500)
        with pytest.raises(LeaseStoreUnavailable):
            store.provision(ResourceConfig(resource="r", shared_capacity=10, factor=10, ttl_ms=15_000))
    assert known.sync(0).grants == ()
