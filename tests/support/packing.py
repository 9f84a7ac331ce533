"""What the tests of the packer share: the invariants of packing.md 2 and two slow, obvious packers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from headrace_core.packing.ids import subject_of

Group = tuple[str, int | None]


class Row(NamedTuple):
    id: str
    time: int | None
    value: Hashable


def time_key(time: int | None) -> tuple[bool, int]:
    """No time comes before all others."""
    return (time is not None, time or 0)


def broken_invariants(rows: Sequence[Row], batches: Sequence[Sequence[Row]], maximum: int) -> list[str]:
    """The names of the invariants that `batches` breaks. Needs rows in order of arrival inside each batch."""
    broken = set()
    if Counter(rows) != Counter(row for batch in batches for row in batch):
        broken.add("I1")
    if any(not 1 <= len(batch) <= maximum for batch in batches):
        broken.add("I2")
    latest = time_key(None)
    for batch in batches:
        times = [time_key(row.time) for row in batch]
        if min(times) < latest:
            broken.add("I3")
        latest = max(times)
    groups = Counter((subject_of(row.id), row.time) for row in rows)
    holders = Counter(group for batch in batches for group in {(subject_of(row.id), row.time) for row in batch})
    if any(holders[group] != -(-size // maximum) for group, size in groups.items()):
        broken.add("I4")
    seen = [row for batch in batches for row in batch]
    for name in {(row.id, row.time) for row in rows}:
        if [r for r in seen if r[:2] == name] != [r for r in rows if r[:2] == name]:
            broken.add("I5")
    return sorted(broken)


def in_time_order(groups: Sequence[Group]) -> list[list[list[int]]]:
    """Row numbers by time, then by group in list order (packing.md 3, step 1)."""
    times = sorted({time for _, time in groups}, key=time_key)
    listed = []
    for time in times:
        members: dict[str, list[int]] = {}
        for at, (subject, when) in enumerate(groups):
            if when == time:
                members.setdefault(subject, []).append(at)
        unsplittable = members.pop("", None)
        listed.append([*members.values(), *([unsplittable] if unsplittable else [])])
    return listed


def plain_count(groups: Sequence[Group], maximum: int) -> int:
    """Batches of the plain method: groups as they come, the open batch is closed when the next piece does not fit."""
    count, room = 0, 0
    for group in (group for time in in_time_order(groups) for group in time):
        for start in range(0, len(group), maximum):
            piece = min(maximum, len(group) - start)
            if piece > room:
                count, room = count + 1, maximum
            room -= piece
    return count


def slow_pack(groups: Sequence[Group], maximum: int, carried: Sequence[str] = ()) -> tuple[list[list[int]], list[int]]:
    """packing.md 3 word for word. `carried`: subjects of the rows in the open batch, numbered -1, -2, ...

    Returns the batches that were sent and the open one, as row numbers.
    """
    sent: list[list[int]] = []
    subject_at = {-1 - i: subject for i, subject in enumerate(carried)}
    subject_at.update(enumerate(subject for subject, _ in groups))
    open_ = list(subject_at)[: len(carried)]
    for listed in in_time_order(groups):
        bins, small = [open_] if open_ else [], list[list[int]]()
        for group in listed:
            odd = len(group) % maximum
            full = group
            if len(group) <= maximum:
                small.append(group)
                continue
            if odd and open_ and len(open_) + odd <= maximum:
                open_.extend(group[:odd])
                full = group[odd:]
            elif odd:
                full = group[: len(group) - odd]
                small.append(group[len(group) - odd :])
            bins += [full[i : i + maximum] for i in range(0, len(full), maximum)]
        in_open = {subject_at[row] for row in open_}
        for group in sorted(small, key=lambda g: (-len(g), subject_at[g[0]] not in in_open)):
            for each in bins:
                if len(each) + len(group) <= maximum:
                    each.extend(group)
                    break
            else:
                bins.append(list(group))
        open_ = _leave_open(bins, sent, had_open=bool(open_))
        if len(open_) == maximum:
            sent.append(open_)
            open_ = []
    return sent, open_


def _leave_open(bins: list[list[int]], sent: list[list[int]], *, had_open: bool) -> list[int]:
    """Step 5."""
    if len(bins) == 1:
        return bins[0]
    new = bins[1:] if had_open else bins
    if had_open:
        sent.append(bins[0])
    emptiest = max(i for i, each in enumerate(new) if len(each) == min(map(len, new)))
    sent.extend(each for i, each in enumerate(new) if i != emptiest)
    return new[emptiest]
