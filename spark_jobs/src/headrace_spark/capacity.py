"""Where the pacing of a job is made (spark-writer.md 6).

Without a lease store the capacity is this job's alone: the driver paces by itself where it alone sends, and a ledger on
the host paces driver and Python workers where all of them send. With a lease store every process has a lease client of
its own, keyed by its pid and never made before a fork, and shares the resource with whoever uses it.
"""

from __future__ import annotations

import functools
import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace_capacity.stores import open_store
from headrace_core.capacity.errors import LeaseStoreUnavailable
from headrace_core.capacity.protocol import StoreStatus
from headrace_core.capacity.resources import ProvisionedResource, SharedResource
from headrace_core.capacity.units import Amount
from headrace_core.errors import ConfigError, HeadraceError
from headrace_spark.database import StateDown
from headrace_spark.host_pacing import HostPacer
from headrace_spark.pacing import SECOND_NS, Pacer, PausingPacing
from headrace_spark.patience import Patience
from headrace_spark.settings import Settings

FIRST_NS: Final = SECOND_NS // 2


class Eager(SharedResource):
    """Wants all, or `most` units per second of it, as long as anything waits, and a second longer: the next request of
    a task or of a merge comes when this one is done, and what is wanted must not fall between the two. The store deals
    out fair shares.

    Who knows that work comes says so ahead (`expect`): the leases come while it is made ready. Who knows that no more
    comes says that too (`rest`): what is held goes back with the next call and not a second later, so the other
    processes of the job, whose turn it is, wait for the quarantine alone. Both may be called by any thread.

    Of several that begin at one time the first would be dealt all, and would hand most of it on a moment later. So in
    its first moment (`FIRST_NS`) one asks for no more than `first` units per second."""

    _wanted_ns = _began_ns = -SECOND_NS
    _resting = False
    most = first = 0

    def expect(self) -> None:
        """Work comes soon."""
        now_ns = time.monotonic_ns()
        if self._resting or self._wanted_ns < 0:
            self._began_ns = now_ns
        self._wanted_ns, self._resting = now_ns, False

    def rest(self) -> None:
        """All work is done, until `expect`."""
        self._resting = True

    def request(self, cost: Amount, head: Amount = 0) -> None:
        """See `Resource`."""
        if self._resting:
            super().request(cost, head)
            return
        now_ns = time.monotonic_ns()
        if cost:
            self._wanted_ns = now_ns
        begins = self.first and now_ns - self._began_ns < FIRST_NS
        all_of_it = self.first if begins else self.most or self.max_capacity
        super().request(all_of_it if now_ns - self._wanted_ns < SECOND_NS else 0, head)


def in_driver(settings: Settings) -> Pacer:
    """Pacing of a job of which only the driver sends (SQLite and Delta Lake)."""
    if settings.lease_store:
        return _leased(settings)
    return Pacer(
        ProvisionedResource(_share(settings)),
        settings.unused,
        concurrent=settings.max_concurrent_batches,
        max_wait_ms=settings.max_wait_ms,
    )


def in_every_process(settings: Settings) -> Callable[[], PausingPacing]:
    """What makes the pacing of a process, in the driver and in each Python worker (path `staged`, and where tasks
    send): all of them together keep to the capacity. The function can be sent to tasks."""
    if settings.lease_store:
        return functools.partial(_leased, settings)
    name = hashlib.sha256(f"{settings.job}\0{settings.state_dsn}".encode()).hexdigest()[:24]
    file = Path(tempfile.gettempdir()) / f"headrace-{name}.capacity"
    return functools.partial(HostPacer, file, settings.usable, settings.max_wait_ms)


class LeaseStoreDown(StateDown):
    """The lease store did not answer for as long as a store may be away (`sink_down_max_ms`)."""

    code = "lease_store_down"


def status(settings: Settings) -> Callable[[], StoreStatus] | None:
    """What asks the lease store how the job's resource is shared, by a client of its own; None if there is no store."""
    if not settings.lease_store:
        return None
    store = open_store(settings.lease_store, token=_token(settings))
    return lambda: store.status(settings.resource or settings.job)


def _token(settings: Settings) -> str:
    """Of the job file, or of a file, which must then be on every host. Raises `ConfigError`."""
    if settings.lease_token or not settings.lease_token_file:
        return settings.lease_token
    try:
        return Path(settings.lease_token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("lease_token_file", f"cannot be read: {error}") from None


def _leased(settings: Settings) -> Pacer:
    """Waits for a lease store that is away or slow, as for a sink. Raises `CapacityConfig`, `LeaseStoreDown`."""
    resource = Eager(
        open_store(settings.lease_store, token=_token(settings)),
        name=settings.resource or settings.job,
        shared_capacity=settings.capacity,
        factor=settings.partition_worth,
        weight=settings.weight,
        handover=settings.handover,
    )
    resource.most = _most(settings) if settings.max_share < 1 else 0
    resource.first = settings.first_units if _in_task() else 0
    Patience(settings.sink_down_max_ms).keep(functools.partial(_made_known, resource))
    return Pacer(
        resource,
        settings.unused,
        quarantine=False,
        concurrent=settings.max_concurrent_batches,
        max_wait_ms=settings.max_wait_ms,
        elsewhere=functools.partial(_elsewhere, status(settings)),
    )


def _elsewhere(ask: Callable[[], StoreStatus] | None) -> bool:
    """Whether anybody uses the resource, as far as the store knows; asked by one who sends nothing."""
    try:
        used = ask().used if ask is not None else 0
    except HeadraceError:
        return False
    return any(used.values()) if isinstance(used, dict) else used > 0


def _made_known(resource: SharedResource) -> None:
    try:
        resource.start()
    except LeaseStoreUnavailable as error:
        raise LeaseStoreDown(str(error)) from error


def _share(settings: Settings) -> int:
    """Units per second that the job may ever take of the capacity."""
    return settings.share_units


def _most(settings: Settings) -> int:
    """What this process may want: whole partitions. The Python workers share what the job may take; the driver merges
    when they have ended."""
    return settings.task_units if _in_task() else settings.share_units


def _in_task() -> bool:
    from pyspark import TaskContext

    return TaskContext.get() is not None
