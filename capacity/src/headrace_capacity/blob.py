"""Leases on Azure blobs (capacity.md 16). Needs the extra `headrace-capacity[azure]`.

One zero-byte blob a partition, `<resource>/<index>`; who has the blob's lease has the partition. The server knows
nothing but that, so all else is the owner's own doing, here in the client of each owner:

    not held --acquire--> waiting out the quarantine --1 window later--> granted --renew--> ... --release--> not held
                                                                           '--lease lost--> dropped

A partition counts only a quarantine after its lease was acquired, as its last owner may have used it until then. There
are no shares, weights, heads, reserve slots or pauses across owners, and the capacity is what each owner is configured
with: it must be the same for all, so the first blob says what it was made for. Tries are in random order with random
pauses of at most `max_interval_ms`, so that owners who start together do not meet at the same blob each time.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.storage.blob import BlobLeaseClient, ContainerClient

from headrace_capacity.calls import Caller
from headrace_core.capacity.errors import CapacityConfig, UnknownResource
from headrace_core.capacity.lease_store import max_capacity
from headrace_core.capacity.protocol import (
    Capacity,
    Claim,
    Grant,
    LeaseReply,
    LeaseRequest,
    OwnerStatus,
    ResourceConfig,
    StoreStatus,
    as_capacity,
    by_dimension,
)
from headrace_core.capacity.worth import worth_of

LEASE_S = (15, 60)
"""What the service takes as the length of a lease, in whole seconds."""
NS_PER_MS = 1_000_000
CONFLICT = (409, 412)
MADE_FOR = "madefor"
"""Metadata of a resource's first blob."""


@dataclass(slots=True)
class Kept:
    """A lease of this owner. `usable_ms`: from when it counts, on the monotonic clock."""

    lease: BlobLeaseClient
    epoch: int
    usable_ms: int
    renewed_ms: int


class BlobReply(LeaseReply, frozen=True, kw_only=True):
    """`denied`: partitions that were tried and are another's."""

    denied: tuple[int, ...] = ()


class AzureBlobStore:
    """`LeaseStore` of *one owner* over the blobs of a container; each owner has its own.

    `connection`: an Azure Storage connection string. Its events are `created-container`, `verified-container`,
    `created-blob` and `verified-blob` (capacity.md 10). The lease time of the resource must be 15 to 60 whole seconds
    (`AZURE_BLOB_LEASE`). Raises `CapacityConfig` for another one, for changes at run time, and where the blobs were
    made for another capacity or factor.
    """

    def __init__(
        self,
        connection: str,
        container: str,
        *,
        max_interval_ms: int = 500,
        call_timeout_ms: int = 2_000,
        provision_timeout_ms: int = 60_000,
    ) -> None:
        self._connection, self._container = connection, container
        self._interval_ms, self._timeout_ms = max_interval_ms, call_timeout_ms
        self._provision_ms = provision_timeout_ms
        self._emit: Callable[[str, int], object] = lambda _name, _val: None
        self._caller = Caller(self._connect, name="the lease store in Azure blobs")
        self._configs: dict[str, ResourceConfig] = {}
        self._kept: dict[tuple[str, int], Kept] = {}
        self._seq: dict[str, tuple[str, int]] = {}
        self._last_epoch = int(time.time()) << 32
        self._guard = threading.Lock()

    def tell(self, emit: Callable[[str, int], object]) -> None:
        """See `TellsEvents`."""
        self._emit = emit

    def provision(self, resource: ResourceConfig) -> None:
        seconds, rest = divmod(resource.ttl_ms, 1000)
        if rest or not LEASE_S[0] <= seconds <= LEASE_S[1]:
            raise CapacityConfig("ttl_ms", "must be 15000 to 60000, in whole seconds, for leases on blobs")

        def work(container: ContainerClient) -> None:
            self._make_container(container)
            for index in range(resource.count(by_dimension(resource.shared_capacity))):
                self._make_blob(container, resource, index)

        self._caller.run(work, self._provision_ms)
        self._configs.setdefault(resource.resource, resource)

    def sync(self, request: LeaseRequest, timeout_ms: int = 2_000) -> LeaseReply:
        config = self._config(request.resource)
        owner, seq = self._seq.get(request.resource, (request.owner, -1))
        if owner != request.owner:
            raise CapacityConfig("owner", "each owner needs its own store for leases on blobs")
        if request.seq <= seq:
            return LeaseReply(stale=True)
        self._seq[request.resource] = (owner, request.seq)
        ends_ms = _now_ms() + timeout_ms * 3 // 4
        return self._caller.run(lambda container: self._exchange(container, config, request, ends_ms), timeout_ms)

    def configure(self, resource: str, **changes: object) -> int:
        self._config(resource)
        for name in changes:
            raise CapacityConfig(name, "cannot be changed at run time with leases on blobs")
        return 1

    def status(self, resource: str) -> StoreStatus:
        """`granted` counts the leased blobs of all owners; who they are, and what they use, the service does not know
        but of this owner."""
        config = self._config(resource)
        leased = self._caller.run(lambda container: _leased(container, resource), self._timeout_ms)
        with self._guard:
            mine = self._mine(resource)
        names = [self._seq[resource][0]] if resource in self._seq else []
        nothing = as_capacity(dict.fromkeys(by_dimension(config.shared_capacity), 0))
        granted = _worth(config, mine)
        return StoreStatus(
            resource=resource,
            shared_capacity=config.shared_capacity,
            max_capacity=max_capacity(config.shared_capacity, config.reserved_capacity),
            granted=_worth(config, leased),
            used=nothing,
            waiting=0,
            pause_ms=0,
            factor=1_000,
            learning=False,
            config_version=1,
            in_force_version=1,
            owners=tuple(OwnerStatus(name, len(mine), len(mine), len(mine), granted, nothing, False) for name in names),
        )

    def close(self) -> None:
        """Leases that were not released end by themselves."""
        self._caller.close()

    def _connect(self) -> ContainerClient:
        limit_s = self._timeout_ms / 1000
        return ContainerClient.from_connection_string(
            self._connection, self._container, retry_total=0, connection_timeout=limit_s, read_timeout=limit_s
        )

    def _config(self, resource: str) -> ResourceConfig:
        if resource not in self._configs:
            raise UnknownResource(resource)
        return self._configs[resource]

    def _make_container(self, container: ContainerClient) -> None:
        try:
            container.create_container()
        except ResourceExistsError:
            self._emit("verified-container", 0)
        else:
            self._emit("created-container", 0)

    def _make_blob(self, container: ContainerClient, resource: ResourceConfig, index: int) -> None:
        blob = container.get_blob_client(f"{resource.resource}/{index}")
        try:
            blob.upload_blob(b"", overwrite=False, metadata={MADE_FOR: _cut(resource)} if index == 0 else None)
        except ResourceExistsError:
            made_for = blob.get_blob_properties().metadata.get(MADE_FOR) if index == 0 else None
            if made_for not in (None, _cut(resource)):
                known = f"the blobs of {resource.resource!r} were made for {made_for}, not for {_cut(resource)}"
                raise CapacityConfig(
                    "shared_capacity", f"{known}; to change it end all users and delete them"
                ) from None
            self._emit("verified-blob", index)
        else:
            self._emit("created-blob", index)

    def _exchange(
        self, container: ContainerClient, config: ResourceConfig, request: LeaseRequest, ends_ms: int
    ) -> LeaseReply:
        """Give back, renew, acquire, in this order; no try begins after `ends_ms`. What could not be renewed in time is
        not granted again: it ends for the owner at its own earlier deadline."""
        name, wanted = config.resource, min(request.want, _count(config))
        with self._guard:
            if request.seq != self._seq[name][1]:  # given up by its caller, and a later call has been here
                return LeaseReply(stale=True)
            for claim in map(Claim._make, request.released):
                self._give_back(name, claim.partition, claim.epoch)
            held = {claim.partition for claim in map(Claim._make, request.held)}
            for index in self._surplus(name, wanted, held):
                self._give_back(name, index, self._kept[name, index].epoch)
            fresh = [index for index in self._by_age(name) if _now_ms() < ends_ms and self._renewed(name, index)]
            new, denied = self._acquired(container, config, wanted - len(self._mine(name)), ends_ms)
            return self._reply(config, request, fresh + new, wanted, denied)

    def _mine(self, resource: str) -> list[int]:
        return sorted(index for name, index in self._kept if name == resource)

    def _by_age(self, resource: str) -> list[int]:
        """The one that was renewed longest ago first."""
        return sorted(self._mine(resource), key=lambda index: self._kept[resource, index].renewed_ms)

    def _surplus(self, resource: str, wanted: int, held: set[int]) -> list[int]:
        """What is not wanted any more and not in use, newest first; what is in use the owner itself gives back."""
        mine = self._mine(resource)
        unused = sorted((i for i in mine if i not in held), key=lambda i: self._kept[resource, i].epoch, reverse=True)
        return unused[: max(0, len(mine) - wanted)]

    def _give_back(self, resource: str, index: int, epoch: int) -> None:
        kept = self._kept.get((resource, index))
        if kept is None or kept.epoch != epoch:
            return
        _tried(kept.lease.release)
        del self._kept[resource, index]

    def _renewed(self, resource: str, index: int) -> bool:
        kept = self._kept[resource, index]
        if not _tried(kept.lease.renew):
            del self._kept[resource, index]
            return False
        kept.renewed_ms = _now_ms()
        return True

    def _acquired(
        self, container: ContainerClient, config: ResourceConfig, missing: int, ends_ms: int
    ) -> tuple[list[int], list[int]]:
        """New leases, tried in random order, and what others have."""
        found, denied = list[int](), list[int]()
        others = [index for index in range(_count(config)) if (config.resource, index) not in self._kept]
        for index in random.sample(others, len(others)):
            if len(found) >= missing or _now_ms() >= ends_ms:
                break
            lease = BlobLeaseClient(container.get_blob_client(f"{config.resource}/{index}"))
            if _tried(partial(lease.acquire, lease_duration=config.ttl_ms // 1000)):
                self._last_epoch += 1
                usable_ms = _now_ms() + config.quarantine_ms
                self._kept[config.resource, index] = Kept(lease, self._last_epoch, usable_ms, _now_ms())
                found.append(index)
            else:
                denied.append(index)
            pause_ms = random.uniform(0, self._interval_ms)
            time.sleep(min(pause_ms, max(0, ends_ms - _now_ms())) / 1000)
        return found, denied

    def _reply(
        self, config: ResourceConfig, request: LeaseRequest, fresh: list[int], wanted: int, denied: list[int]
    ) -> BlobReply:
        name, now_ms, capacity = config.resource, _now_ms(), by_dimension(config.shared_capacity)
        epochs = {index: self._kept[name, index].epoch for index in self._mine(name)}
        ready = [index for index in fresh if self._kept[name, index].usable_ms <= now_ms]
        waits = [kept.usable_ms - now_ms for (of, _), kept in self._kept.items() if of == name]
        if len(epochs) < wanted:
            waits.append(self._interval_ms)
        return BlobReply(
            denied=tuple(denied),
            grants=tuple(Grant(index, epochs[index], worth_of(config, capacity, index)) for index in sorted(ready)),
            drop=tuple(each for each in map(Claim._make, request.held) if epochs.get(each.partition) != each.epoch),
            ttl_ms=config.ttl_ms,
            shared_capacity=config.shared_capacity,
            reserved_capacity=as_capacity(dict.fromkeys(capacity, 0)),
            max_capacity=config.shared_capacity,
            next_sync_ms=min((wait for wait in waits if wait > 0), default=0),
            config_version=1,
        )


def _tried(call: Callable[[], object]) -> bool:
    """False: somebody else has the lease, or the blob is gone. Raises what else the service answers."""
    try:
        call()
    except ResourceNotFoundError:
        return False
    except HttpResponseError as error:
        if error.status_code in CONFLICT:
            return False
        raise
    return True


def _cut(config: ResourceConfig) -> str:
    """What all owners must have alike, so that a blob is worth the same to each. Each decides by its own configuration:
    with another one the sum of what they hold would be above the capacity of both."""
    cut = {"factor": config.factor} if config.partitions is None else {"partitions": config.partitions}
    return json.dumps({"shared_capacity": config.shared_capacity, **cut}, sort_keys=True)  # ASCII: it is a header


def _count(config: ResourceConfig) -> int:
    return config.count(by_dimension(config.shared_capacity))


def _leased(container: ContainerClient, resource: str) -> list[int]:
    blobs = container.list_blobs(name_starts_with=f"{resource}/")
    return [int(blob.name.rpartition("/")[2]) for blob in blobs if blob.lease.state == "leased"]


def _worth(config: ResourceConfig, indexes: list[int]) -> Capacity:
    """Units per second of these partitions together."""
    capacity = by_dimension(config.shared_capacity)
    total = dict.fromkeys(capacity, 0)
    for index in indexes:
        for name, units in by_dimension(worth_of(config, capacity, index)).items():
            total[name] += units
    return as_capacity(total)


def _now_ms() -> int:
    return time.monotonic_ns() // NS_PER_MS
