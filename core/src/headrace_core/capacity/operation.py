"""Operation, watcher and batch: what goes into the batcher and what comes out (capacity.md 1, 19).

An operation may be queued several times; each copy is an `Entry` with the cost that was in force when it was enqueued.
A batch is a list of entries for one watcher; `dispatch.py` says how its phase changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol, overload

from headrace_core.capacity.errors import CapacityConfig
from headrace_core.capacity.units import Amount, Units, add, amount, units


class Watcher:
    """Short-lived receiver of batches. `max_attempts`, `max_batch_size` 0: no limit; `max_operation_ms` in ms, None:
    the batcher's. `on_error(batch, error)` gets batches whose callback raised, and operations that left the buffer."""

    __slots__ = ("callback", "max_attempts", "max_batch_size", "max_operation_ms", "on_error")

    def __init__(
        self,
        callback: Callable[[Batch], Any],
        *,
        max_attempts: int = 0,
        max_batch_size: int = 0,
        max_operation_ms: int | None = None,
        on_error: Callable[[Batch, BaseException], Any] | None = None,
    ) -> None:
        if not callable(callback):
            raise CapacityConfig("callback", "must be given")
        if max_attempts < 0 or max_batch_size < 0:
            raise CapacityConfig("max_attempts" if max_attempts < 0 else "max_batch_size", "must be 0 or more")
        self.callback = callback
        self.max_attempts = max_attempts
        self.max_batch_size = max_batch_size
        self.max_operation_ms = max_operation_ms if max_operation_ms and max_operation_ms > 0 else None
        self.on_error = on_error


class CostModel(Protocol):
    """A cost that is learned (capacity.md 15), such as `LearnedCost`."""

    def __call__(self, payload: Any) -> Amount:
        """The estimate of now, in units."""

    def learn(self, payload: Any, charge: Amount) -> None:
        """The datastore charged `charge` units."""


class Operation:
    """One unit of work. `cost` in units, or units for each dimension, or a model that estimates it from the payload at
    each enqueue; then `cost` reads as the estimate in force. The same object may be queued several times."""

    __slots__ = ("_attempt", "_model", "_units", "batchable", "cost", "payload", "watcher")

    def __init__(
        self, watcher: Watcher | None, cost: Amount | CostModel, payload: Any, batchable: bool = False
    ) -> None:
        self._model = cost if callable(cost) else None
        self.cost: Amount = cost(payload) if callable(cost) else cost
        self._units = units(self.cost, "cost")
        self._attempt = 0
        self.watcher = watcher
        self.payload = payload
        self.batchable = batchable

    @property
    def attempt(self) -> int:
        """How often its callback has been entered."""
        return self._attempt

    @property
    def cost_units(self) -> dict[str, int]:
        """The cost for each dimension; not to be changed."""
        return self._units

    def fix_cost(self) -> dict[str, int]:
        """For the engine, at enqueue: the cost of this copy for each dimension, from now on fixed."""
        if self._model is not None:
            self.cost = self._model(self.payload)
            self._units = units(self.cost, "cost")
        return self._units

    def learn(self, charge: Amount) -> None:
        """For the engine: what the datastore charged; it changes only later estimates."""
        if self._model is not None:
            self._model.learn(self.payload, charge)

    def count_attempt(self) -> None:
        """For the engine: a callback is about to be entered."""
        self._attempt += 1

    def allow_batch(self) -> Operation:
        return self.with_batching(True)

    def with_batching(self, batchable: bool) -> Operation:
        self.batchable = batchable
        return self


class Entry:
    """A copy of an operation in the buffer. `seq` is the order of arrival, kept when it is put back."""

    __slots__ = ("cost", "op", "seq", "watcher")

    def __init__(self, op: Operation, watcher: Watcher, cost: Units, seq: int) -> None:
        self.op = op
        self.watcher = watcher
        self.cost = cost
        self.seq = seq


class CancelToken:
    """Set once the operation time of a batch is over; callbacks look at it."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def __bool__(self) -> bool:
        return self._set


class Phase(Enum):
    """See the table in `dispatch.py`."""

    RAISED = "raised"
    RUNNING = "running"
    OVER = "over"
    RETURNED = "returned"
    WITHDRAWN = "withdrawn"


class Batch(Sequence[Operation]):
    """Operations given to one callback. `deadline_ms` (monotonic) is 0 until the callback is entered."""

    __slots__ = ("cancelled", "cost_units", "deadline_ms", "entries", "phase", "seq", "settler", "watcher")

    def __init__(self, watcher: Watcher, entries: list[Entry], seq: int) -> None:
        self.watcher = watcher
        self.entries = entries
        self.seq = seq
        self.phase = Phase.RAISED
        self.deadline_ms = 0
        self.cancelled = CancelToken()
        self.cost_units: dict[str, int] = {}
        self.settler: Callable[[Batch, Operation, Amount], None] | None = None
        for entry in entries:
            add(self.cost_units, entry.cost)

    @property
    def cost(self) -> int | dict[str, int]:
        return amount(self.cost_units)

    def settle(self, op: Operation, charge: Amount) -> None:
        """Report what the datastore really charged for `op`, in units (capacity.md 15). Raises ValueError if `op` is
        not of this batch, UnknownDimension."""
        if self.settler is not None:
            self.settler(self, op, charge)

    def estimate(self, op: Operation) -> Units:
        """The cost of `op` that was in force when it was enqueued. Raises ValueError if it is not of this batch."""
        for entry in self.entries:
            if entry.op is op:
                return entry.cost
        raise ValueError("the operation is not of this batch")

    @overload
    def __getitem__(self, index: int) -> Operation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Operation]: ...
    def __getitem__(self, index: int | slice) -> Operation | list[Operation]:
        if isinstance(index, slice):
            return [entry.op for entry in self.entries[index]]
        return self.entries[index].op

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)
