"""The packer: measurements of a lane into batches of at most `max`, in time order, as few as a greedy rule gives.

Time by time (none first), the groups of a time (one subject's measurements) are put into the open batch, *bin 0*, or
into new bins; all bins but one are sent, the emptiest new one stays open for later times (packing.md 3). So:

- every row is in exactly one batch, no batch is empty or above `max` (I1, I2);
- no time in a later batch is before a time in an earlier one (I3): a bin takes rows of a later time only if it is open,
  and nothing of an earlier time can come after it;
- a group is cut only if it is larger than `max` (I4), and its rows stay in order of arrival (I5).

The result is a pure function of the rows and of the open batch that is carried in, so a retry packs the same batches.

Cost: two stable sorts, then work per time, per distinct group size and per bin (packing.md 5). Equal sizes are placed
as runs: a bin takes as many as fit, then the next bin; this is first fit, as a bin without room for a size never
regains it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace_core.errors import ConfigError
from headrace_core.packing.subjects import Ints, number_subjects

UNTIMED = int(np.iinfo(np.int64).min)
"""The time of a measurement without a time: before all others."""

NONE = -1


class Open(NamedTuple):
    """The open batch that is carried into a packing: its size and the numbers of the subjects in it."""

    size: int
    subjects: Ints


class Packed(NamedTuple):
    """`numbers`: batch number per row, in order of sending. `sizes`: rows per batch, a carried open batch's included.

    A carried open batch is always number 0. `open`: the last batch is still open (False after a flush).
    """

    numbers: Ints
    sizes: Ints
    open: bool


class Groups(NamedTuple):
    """Rows sorted by (time, unsplittable last, first appearance, arrival), as groups. `times_at` cuts them by time."""

    order: Ints
    subjects: Ints
    sizes: Ints
    starts: Ints
    times_at: Ints


def pack(
    ids: Sequence[str],
    times: Sequence[int | None] | npt.NDArray[np.generic],
    maximum: int,
    table: Mapping[str, str] | None = None,
) -> Ints:
    """Pack a finite list and flush (backlog mode): the batch number of each row, from 0 in order of sending.

    `times` in ms, None or NaN = no time; `maximum` rows a batch. Raises `ConfigError` if `maximum` is below 1.
    """
    subjects = number_subjects(ids, table)
    return pack_rows(subjects.codes, as_times(times), maximum, unsplittable=subjects.unsplittable).numbers


def as_times(times: Sequence[int | None] | npt.NDArray[np.generic]) -> Ints:
    """Times as int64 milliseconds, with `UNTIMED` for None and NaN."""
    if isinstance(times, np.ndarray) and times.dtype.kind in "iu":
        return times.astype(np.int64)
    if isinstance(times, np.ndarray) and times.dtype.kind == "f":
        missing = np.isnan(times)
        return np.where(missing, UNTIMED, np.where(missing, 0, times).astype(np.int64))
    return np.fromiter((UNTIMED if _missing(t) else t for t in times), np.int64, len(times))


def _missing(time: object) -> bool:
    return time is None or time != time  # NaN is the only value that differs from itself


def pack_rows(
    subjects: Ints,
    times: Ints,
    maximum: int,
    *,
    unsplittable: int = NONE,
    carried: Open | None = None,
    flush: bool = True,
) -> Packed:
    """Pack rows in order of arrival, given by subject number and time (`UNTIMED` = none)."""
    if maximum < 1:
        raise ConfigError("max", "must be 1 or more")
    groups = _group(subjects, times, unsplittable)
    bins = _Bins(maximum, _subject_count(subjects, carried), carried)
    cut = _Cuts()
    places = np.full(len(groups.sizes), NONE, np.int64)
    for first, last in pairwise(groups.times_at.tolist()):
        _pack_time(groups, slice(first, last), places, bins, cut)
    if flush:
        bins.flush()
    of_bin = bins.numbers()
    rows = np.empty(len(subjects), np.int64)
    rows[groups.order] = of_bin[cut.over(np.repeat(places, groups.sizes))]
    sizes = np.empty(len(of_bin), np.int64)
    sizes[of_bin] = maximum - np.array(bins.room, np.int64)
    return Packed(rows, sizes, bins.open != NONE)


def _subject_count(subjects: Ints, carried: Open | None) -> int:
    known = [int(s.max()) for s in (subjects, carried.subjects if carried else subjects) if len(s)]
    return max(known, default=-1) + 1


def _group(subjects: Ints, times: Ints, unsplittable: int) -> Groups:
    """Sort (packing.md 5): rows by (time, subject), then the groups of a time by first appearance."""
    by_group = np.lexsort((subjects, times))
    sorted_subjects, sorted_times = subjects[by_group], times[by_group]
    starts = run_starts(sorted_times, sorted_subjects)
    sizes = np.diff(np.append(starts, len(subjects)))
    first_row, group_times, group_subjects = by_group[starts], sorted_times[starts], sorted_subjects[starts]
    listed = np.lexsort((first_row, group_subjects == unsplittable, group_times))
    sizes, old_starts = sizes[listed], starts[listed]
    new_starts = np.cumsum(sizes) - sizes
    order = by_group[np.arange(len(subjects)) + np.repeat(old_starts - new_starts, sizes)]
    times_at = np.append(run_starts(group_times[listed]), len(sizes))
    return Groups(order, group_subjects[listed], sizes, new_starts, times_at)


def run_starts(*columns: Ints) -> Ints:
    """Where runs of equal rows begin."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    new = np.zeros(len(columns[0]), np.bool_)
    new[0] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new).astype(np.int64)


class _Cuts:
    """Pieces of groups above the maximum: (first sorted row, one bin per row)."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, Ints]] = []

    def add(self, row: int, bins: Ints) -> None:
        self._pieces.append((row, bins))

    def over(self, rows: Ints) -> Ints:
        for start, bins in self._pieces:
            rows[start : start + len(bins)] = bins
        return rows


class _Bins:
    """Bins in order of creation, with the room of each; the order in which they were sent; the open one.

    `holders[subject]` is the last bin that was open while it held the subject.
    """

    def __init__(self, maximum: int, subjects: int, carried: Open | None) -> None:
        self.maximum = maximum
        self.room: list[int] = []
        self.sent: list[int] = []
        self.open = NONE
        self.holders = np.full(subjects, NONE, np.int64)
        if carried is not None and carried.size:
            self.open = self.new()
            self.room[0] = maximum - carried.size
            self.holders[carried.subjects] = 0

    def new(self, size: int = 0) -> int:
        self.room.append(self.maximum - size)
        return len(self.room) - 1

    def close_time(self, candidates: range) -> None:
        """Steps 5 and 6: `candidates` are the bins made at this time."""
        if candidates:
            if self.open != NONE:
                self.sent.append(self.open)
            self.open = max(candidates, key=lambda b: (self.room[b], b))
            self.sent += [b for b in candidates if b != self.open]
        if self.open != NONE and self.room[self.open] == 0:
            self.flush()

    def flush(self) -> None:
        if self.open != NONE:
            self.sent.append(self.open)
            self.open = NONE

    def numbers(self) -> Ints:
        """The batch number of each bin: its place in the order of sending, the open one last."""
        order = self.sent if self.open == NONE else [*self.sent, self.open]
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.arange(len(order))
        return numbers


def _pack_time(groups: Groups, now: slice, places: Ints, bins: _Bins, cut: _Cuts) -> None:
    """Steps 2 to 6 for the groups `now`, which are in list order."""
    sizes, subjects = groups.sizes[now].copy(), groups.subjects[now]
    first_new = len(bins.room)
    for g in np.flatnonzero(sizes > bins.maximum).tolist():
        sizes[g] = _cut(int(groups.starts[now.start + g]), int(sizes[g]), int(subjects[g]), bins, cut)
    in_open = bins.holders[subjects] == bins.open if bins.open != NONE else np.zeros(len(sizes), np.bool_)
    ranked = np.lexsort((~in_open, -sizes))  # step 3; stable, so list order decides last
    ranked = ranked[: np.count_nonzero(sizes)]
    place = np.full(len(sizes), NONE, np.int64)
    _first_fit(ranked, sizes, place, bins, first_new)
    bins.close_time(range(first_new, len(bins.room)))
    places[now] = place
    if bins.open != NONE:
        bins.holders[subjects[place == bins.open]] = bins.open


def _cut(start: int, size: int, subject: int, bins: _Bins, cut: _Cuts) -> int:
    """Step 2 for one group above the maximum. Returns how many of its last rows go on as a small group."""
    odd = size % bins.maximum
    if odd and bins.open != NONE and bins.room[bins.open] >= odd:
        bins.room[bins.open] -= odd
        bins.holders[subject] = bins.open
        cut.add(start, np.full(odd, bins.open, np.int64))
        start, size, odd = start + odd, size - odd, 0
    full = np.array([bins.new(bins.maximum) for _ in range(size // bins.maximum)], np.int64)
    cut.add(start, np.repeat(full, bins.maximum))
    return odd


def _first_fit(ranked: Ints, sizes: Ints, place: Ints, bins: _Bins, first_new: int) -> None:
    """Step 4. `ranked` are the small groups, larger first; the candidates are the open bin, then the new ones."""
    for first, last, size in _equal_sizes(sizes[ranked]):
        at, b = first, bins.open if bins.open != NONE else first_new
        while at < last:
            if b == len(bins.room):
                bins.new()
            taken = min(last - at, bins.room[b] // size)
            if taken:
                place[ranked[at : at + taken]] = b
                bins.room[b] -= taken * size
                at += taken
            b = b + 1 if b >= first_new else first_new


def _equal_sizes(sizes: Ints) -> Iterator[tuple[int, int, int]]:
    edges = [*run_starts(sizes).tolist(), len(sizes)]
    for first, last in pairwise(edges):
        yield first, last, int(sizes[first])
