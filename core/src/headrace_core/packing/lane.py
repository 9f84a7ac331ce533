"""A lane in stream mode: measurements wait until their time is closed, then they are packed (packing.md 6.4, 6.5).

A row is *pending* until its time is closed, then *packed*: in a batch that is sent at once, or in the *open* batch,
which takes rows of later times until it is full, has no room or is `linger_ms` old.

    arrived --time closed--> packed --+-- sent
       '--untimed: at once------^     '-- open --full, no room, linger_ms--> sent

A time is closed when the lane has seen a time at least `lateness_ms` later, or `linger_ms` after it was first seen. All
earlier times that wait are closed with it: else a time that lingers would overtake an earlier one that came after it.

Time is `now_ms`, the timestamp of the micro-batch, never the wall clock: a retry packs the same batches. The next state
is a new value; the one that was passed in is left as it was, so a failed micro-batch simply starts from it again.

*Late* is a row that cannot keep the order any more: its time is before that of a batch in front of it, or the rest of
its group went out before it. It is packed by the normal rules and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace_core.packing.packer import UNTIMED, Open, Packed, as_times, pack_rows, run_starts
from headrace_core.packing.settings import PackingSettings
from headrace_core.packing.subjects import Ints, Subjects, number_subjects

Bools = npt.NDArray[np.bool_]


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """Rows as columns, in order of arrival. `times` has `UNTIMED` for none; `values` are the adapter's own bytes."""

    ids: list[str] = []
    times: list[int] = []
    values: list[bytes] = []
    seen_ms: list[int] = []

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: Rows) -> Rows:
        return Rows(
            self.ids + other.ids,
            self.times + other.times,
            self.values + other.values,
            self.seen_ms + other.seen_ms,
        )

    def take(self, at: Ints) -> Rows:
        """The rows with the numbers `at`, in that order."""
        numbers = at.tolist()
        return Rows(
            [self.ids[i] for i in numbers],
            [self.times[i] for i in numbers],
            [self.values[i] for i in numbers],
            [self.seen_ms[i] for i in numbers],
        )


class LaneState(msgspec.Struct, frozen=True, array_like=True):
    """What a lane carries from one micro-batch to the next; `encode` and `decode` make it durable.

    `latest_ms`: latest time seen. `opened_ms`: `now_ms` when the open batch was begun. `sent_to`: latest time in a sent
    batch, `sent_subjects` the subjects sent at that time.
    """

    pending: Rows = Rows()
    open: Rows = Rows()
    latest_ms: int = UNTIMED
    opened_ms: int = 0
    sent_to: int = UNTIMED
    sent_subjects: list[str] = []

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> LaneState:
        """Raises `msgspec.DecodeError` if `data` is not an encoded state."""
        return msgspec.msgpack.decode(data, type=LaneState)


class Counts(NamedTuple):
    """The lane's metrics of one step (packing.md 7): rows packed in it (not those that wait), but groups for `cut`."""

    measurements: int
    late: int
    cut: int
    unsplittable: int
    untimed: int


class Step(NamedTuple):
    """`batches` in order of sending; `state` is to be kept after they are all sent; `due_ms`: when to step again."""

    batches: list[Rows]
    state: LaneState
    counts: Counts
    due_ms: int | None


class Lane:
    """The packer of one lane. It keeps no state of its own."""

    def __init__(self, settings: PackingSettings, table: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._table = table

    def step(
        self,
        state: LaneState,
        ids: Sequence[str],
        times: Sequence[int | None],
        values: Sequence[bytes],
        *,
        now_ms: int,
        end: bool = False,
    ) -> Step:
        """Take one micro-batch, in order of arrival. `end`: close and flush everything (always so in backlog mode)."""
        new = Rows(list(ids), as_times(times).tolist(), list(values), [now_ms] * len(ids))
        waiting = state.pending + new
        latest_ms = max([state.latest_ms, *new.times])
        end = end or self._settings.mode == "backlog"
        closed = np.ones(len(waiting), np.bool_) if end else self._closed(waiting, latest_ms, now_ms)
        kept = msgspec.structs.replace(state, pending=waiting.take(np.flatnonzero(~closed)), latest_ms=latest_ms)
        step = self._pack(kept, waiting.take(np.flatnonzero(closed)), now_ms, flush=end)
        if len(step.state.open) and now_ms >= step.state.opened_ms + self._settings.linger_ms:
            step = self._flush(step)
        return step._replace(due_ms=self._due(step.state))

    def _closed(self, rows: Rows, latest_ms: int, now_ms: int) -> Bools:
        """Which rows are of a closed time."""
        times, seen = np.array(rows.times, np.int64), np.array(rows.seen_ms, np.int64)
        timed = times != UNTIMED
        lingered = seen <= now_ms - self._settings.linger_ms
        overtaken = times <= max(latest_ms - self._settings.lateness_ms, UNTIMED)
        closed = timed & (lingered | overtaken)
        if closed.any():
            closed = timed & (times <= times[closed].max())
        ready: Bools = ~timed | closed
        return ready

    def _pack(self, state: LaneState, rows: Rows, now_ms: int, *, flush: bool) -> Step:
        """Pack closed rows behind the open batch."""
        subjects = number_subjects(state.open.ids + rows.ids, self._table)
        first = len(state.open)
        packed = pack_rows(
            subjects.codes[first:],
            np.array(rows.times, np.int64),
            self._settings.max,
            unsplittable=subjects.unsplittable,
            carried=Open(first, np.unique(subjects.codes[:first])),
            flush=flush,
        )
        every = state.open + rows
        numbers = np.concatenate([np.zeros(first, np.int64), packed.numbers])
        counts = self._count(state, every, subjects, numbers, packed)
        batches = [every.take(at) for at in _by_number(numbers, len(packed.sizes))]
        open_ = batches.pop() if packed.open else Rows()
        opened_ms = state.opened_ms if packed.open and first and not batches else now_ms
        kept = msgspec.structs.replace(state, open=open_, opened_ms=opened_ms if len(open_) else 0)
        return Step(batches, self._after_sending(kept, batches), counts, None)

    def _flush(self, step: Step) -> Step:
        batches = [step.state.open]
        kept = msgspec.structs.replace(step.state, open=Rows(), opened_ms=0)
        return step._replace(batches=step.batches + batches, state=self._after_sending(kept, batches))

    def _after_sending(self, state: LaneState, batches: list[Rows]) -> LaneState:
        """Remember how far the lane has sent, and which subjects at that time."""
        times = [max(batch.times) for batch in batches]
        sent_to = max([state.sent_to, *times])
        names = set(state.sent_subjects) if sent_to == state.sent_to else set[str]()
        for batch, latest in zip(batches, times, strict=True):
            if latest == sent_to != UNTIMED:
                ids = [each for each, time in zip(batch.ids, batch.times, strict=True) if time == sent_to]
                names.update(number_subjects(ids, self._table).names)
        return msgspec.structs.replace(state, sent_to=sent_to, sent_subjects=sorted(names))

    def _count(self, state: LaneState, every: Rows, subjects: Subjects, numbers: Ints, packed: Packed) -> Counts:
        times, first = np.array(every.times, np.int64), len(state.open)
        fresh = np.arange(len(every)) >= first
        groups = _groups(subjects.codes, times)
        late = times < _latest_before(times, numbers, len(packed.sizes), state.sent_to)
        late |= _of_sent_groups(state, times, subjects)
        late |= (numbers > 0) & np.isin(groups, groups[:first])  # its group was in the open batch, which had no room
        return Counts(
            measurements=len(every) - first,
            late=int((late & fresh & (times != UNTIMED)).sum()),
            cut=int((np.bincount(groups[fresh]) > self._settings.max).sum()),
            unsplittable=int((subjects.codes[fresh] == subjects.unsplittable).sum()),
            untimed=int((times[fresh] == UNTIMED).sum()),
        )

    def _due(self, state: LaneState) -> int | None:
        """When `linger_ms` is over for something that waits."""
        since = [*state.pending.seen_ms, *([state.opened_ms] if len(state.open) else [])]
        return min(since) + self._settings.linger_ms if since else None


def _by_number(numbers: Ints, count: int) -> list[Ints]:
    """Row numbers of each batch, in order of arrival."""
    order = np.argsort(numbers, kind="stable").astype(np.int64)
    edges = np.searchsorted(numbers[order], np.arange(1, count))
    return np.split(order, edges) if count else []


def _of_sent_groups(state: LaneState, times: Ints, subjects: Subjects) -> Bools:
    """Which rows are of the time that the lane has sent to, and of a subject sent then: their group went out before."""
    of_that_time = times == state.sent_to
    sent = set(state.sent_subjects)
    codes = [code for code in np.unique(subjects.codes[of_that_time]).tolist() if subjects.names[code] in sent]
    found: Bools = of_that_time & np.isin(subjects.codes, codes)
    return found


def _latest_before(times: Ints, numbers: Ints, count: int, sent_to: int) -> Ints:
    """Per row, the latest time in what is sent before its batch."""
    latest = np.full(count + 1, sent_to, np.int64)
    np.maximum.at(latest, numbers + 1, times)
    return np.maximum.accumulate(latest)[numbers]


def _groups(codes: Ints, times: Ints) -> Ints:
    """A number per row, equal for rows of one subject and time."""
    order = np.lexsort((codes, times))
    new = np.zeros(len(codes), np.int64)
    new[run_starts(times[order], codes[order])] = 1
    groups = np.empty(len(codes), np.int64)
    groups[order] = np.cumsum(new) - 1
    return groups
