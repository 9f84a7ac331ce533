"""One scan of the buffer (capacity.md 5): which operations go now, and in which batches.

From the oldest: above the maximum of now -> it leaves with an error (capacity.md 3); pacing says no -> the scan ends;
no slot -> the operation stays in place and the scan goes on; else it is taken and charged. Singles and full batches
are raised during the scan, part-filled ones at its end, in the order in which they were opened. Free slots are counted
once, at the start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_core.capacity.buffer import Buffer
from headrace_core.capacity.operation import Entry, Watcher
from headrace_core.capacity.pacing import Pacer
from headrace_core.capacity.units import Units, exceeds


@dataclass(slots=True)
class Scan:
    """What came out: groups in the order raised, operations that can never pass, and why the scan ended early."""

    groups: list[tuple[Watcher, list[Entry]]] = field(default_factory=list)
    hopeless: list[Entry] = field(default_factory=list)
    blocked: Entry | None = None
    without_slot: int = 0


def scan(buffer: Buffer, pacer: Pacer, *, slots: int | None, ceiling: Units | None) -> Scan:
    """Take from `buffer` what may go. `slots`: free ones, `ceiling`: most that one may cost; None = no limit."""
    result = Scan()
    opened: dict[Watcher, list[Entry]] = {}
    passed_over: list[Entry] = []
    while (entry := buffer.head) is not None:
        if ceiling is not None and exceeds(entry.cost, ceiling):
            result.hopeless.append(buffer.popleft())
            continue
        if not pacer.allows(entry.cost):
            result.blocked = entry
            break
        joins = entry.op.batchable and entry.watcher in opened
        if not joins and slots == 0:
            passed_over.append(buffer.popleft())
            continue
        if not joins and slots is not None:
            slots -= 1
        pacer.take(entry.cost)
        _place(buffer.popleft(), opened, result)
    buffer.put_back_left(passed_over)
    result.without_slot = len(passed_over)
    result.groups += opened.items()
    return result


def _place(entry: Entry, opened: dict[Watcher, list[Entry]], result: Scan) -> None:
    watcher = entry.watcher
    if not entry.op.batchable:
        result.groups.append((watcher, [entry]))
        return
    group = opened.setdefault(watcher, [])
    group.append(entry)
    if watcher.max_batch_size and len(group) >= watcher.max_batch_size:
        result.groups.append((watcher, opened.pop(watcher)))
