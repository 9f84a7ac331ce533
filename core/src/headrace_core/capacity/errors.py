"""Errors of the capacity engine: one class for each stable code (capacity.md 3, 11)."""

from __future__ import annotations

from headrace_core.errors import ConfigError, HeadraceError


class BatcherError(HeadraceError):
    """Base of all errors of batcher and resources. `code` is the name of the class; `retry`: may work later."""

    code = "BatcherError"

    def __init_subclass__(cls) -> None:
        cls.code = cls.__name__


class NoOperation(BatcherError):
    """Enqueue was called without an operation."""


class NoWatcher(BatcherError):
    """The operation has no watcher."""


class UnknownDimension(BatcherError):
    """The cost names a dimension that the resource does not have."""


class TooExpensive(BatcherError):
    """The cost is above the most that the resource could ever hold, less headroom."""


class TooManyAttempts(BatcherError):
    """The operation has had all the attempts that its watcher allows."""


class BufferShutdown(BatcherError):
    """The batcher is stopping or stopped."""


class BufferFull(BatcherError):
    """No room in the buffer now."""

    retry = True


class ImproperOrder(BatcherError):
    """The call does not fit the state, such as a second start."""


class InitializationOnly(BatcherError):
    """A fixed setting was changed after start."""


class UndefinedLeaseStore(BatcherError):
    """A shared resource needs a lease store."""


class UndefinedSharedCapacity(BatcherError):
    """A shared resource needs a shared capacity."""


class SharedCapacityNotProvisioned(BatcherError):
    """A fixed resource has no shared capacity."""


class CapacityConfig(BatcherError, ConfigError):
    """A setting is wrong; `field` names it."""


class PartitionsOutOfRange(CapacityConfig):
    """More than 500 partitions would be needed, or none. Capacity is never cut silently."""


class LeaseStoreUnavailable(BatcherError):
    """The lease store did not answer in time; never a grant. The same call, under a new `seq`, can work later."""

    retry = True


class UnknownResource(BatcherError):
    """`provision` was not called for this resource, or the store lost it. `resource` names it."""

    retry = True

    def __init__(self, resource: str) -> None:
        super().__init__(f"resource {resource!r} is not provisioned")
        self.resource = resource
