"""What a stage is: bytes of a log in, mutations of a state and emissions out.

A stage holds no state of its own between two calls of `apply` but what it could read again from `state`; caches are
allowed if `forget()` empties them. The runner of `streams.md` runs any stage. So a crash at any point, a replay and
another cut into chunks give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from headrace_core.state import State

Headers = tuple[tuple[str, bytes], ...]
UNREADABLE = ("kind", b"unreadable-header")
"""The first header of a record that has a header whose name is not UTF-8: no stage takes it for anything else."""


class Record(NamedTuple):
    """One record of an input partition. `append_ms` is the broker's append time (LogAppendTime), UTC ms."""

    partition: int
    offset: int
    append_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Emission(NamedTuple):
    """One record to produce. `topic` is a logical name (`routed`, `batches`, `dead-letter`), without prefix.

    `partition` None: murmur2 of the key. A `value` of None is a tombstone.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """When the owner of a partition has to write a tick: `at_ms` on the log's clock."""

    at_ms: int


class Stage(Protocol):
    """A pure stage. All methods are functions of their arguments and the configuration."""

    name: str
    primary: bytes
    """Family bytes that go to the changelog; all other families are derived from them by `derive`."""

    def apply(self, state: State, record: Record, emit: Callable[[Emission], None]) -> None:
        """Apply one record. A message's own fault is an emission (dead letter), never an exception."""

    def derive(self, state: State, key: bytes, value: bytes) -> None:
        """Write the derived keys of one primary item; called for each item in key order after a restore."""

    def next_due(self, state: State) -> int | None:
        """Log time (ms) at which something becomes due without further records; None: nothing waits. O(log n)."""

    def gauges(self, state: State) -> Mapping[str, int]:
        """Counters and gauges by name (`accepted`, `pending`, ...), read from the state. O(number of names)."""

    def forget(self) -> None:
        """Empty all caches."""


@runtime_checkable
class FollowsClock(Protocol):
    """A stage that wants ticks at every interval while something waits, and not only once it is due."""

    def follows_clock(self, state: State) -> bool:
        """Whether something is open (batching.md 4.5) or pending (registration.md 1). O(log n)."""


@runtime_checkable
class HasAges(Protocol):
    """A stage that tells how long the oldest of what waits in it has waited."""

    def ages(self, state: State) -> Mapping[str, int]:
        """Milliseconds on the log's clock by name (`oldest_open`), 0 if nothing waits. O(log n)."""


@runtime_checkable
class RepeatsReplies(Protocol):
    """A stage that remembers what it has answered."""

    def again(self, state: State, record: Record) -> Emission | None:
        """The reply to a record that `state` contains, which may have been lost with a worker; changes nothing.

        None: none was asked for, or it is not remembered.
        """


@runtime_checkable
class JudgesClocks(Protocol):
    """A stage that does not trust the log's clock if those of the senders are far from it."""

    def degraded(self, state: State) -> bool:
        """Whether it does not trust it now."""

    def crossed(self, state: State, offsets: Sequence[int]) -> bool:
        """Whether a record with the senders' offsets (ms, at least one) would change that."""


@runtime_checkable
class HasOldest(Protocol):
    """A stage whose messages wait for somebody to ask for them; nothing in the log tells that nobody does. It knows
    where the first and the last of them stand."""

    def oldest(self, state: State) -> int | None:
        """Log time (ms) from which the first message that is not done may be asked for; None: there is none."""

    def furthest(self, state: State) -> int | None:
        """Log time (ms) of the last one, to the minute; None: there is none."""


@runtime_checkable
class HasStatuses(Protocol):
    """A stage whose messages change their status as time passes, without any record of the log."""

    def statuses(self, state: State, at_ms: int) -> Mapping[str, int]:
        """How many messages have which status at `at_ms` (UTC ms); bounded, however many there are."""


class Histogram(NamedTuple):
    """Observations by bucket: `edges` are upper bounds, and included; `counts` has one more, of what is above them."""

    edges: tuple[int, ...]
    counts: tuple[int, ...]
    total: int
    """Sum of the values."""


@runtime_checkable
class HasHistograms(Protocol):
    """A stage that counts values by bucket."""

    def histograms(self, state: State) -> Mapping[str, Histogram]:
        """By name (`lateness_ms`), read from the state. O(number of buckets)."""


@runtime_checkable
class CountsRoots(Protocol):
    """A stage that also counts by root."""

    def root_gauges(self, state: State) -> Iterator[tuple[str, str, int]]:
        """(root, name, value), read from the state. O(number of roots)."""


def header(headers: Headers, name: str) -> bytes | None:
    """The first value of the header `name`, or None."""
    for key, value in headers:
        if key == name:
            return value
    return None
