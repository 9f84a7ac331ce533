"""How many messages have which status at a time that is given, for whoever watches a partition (timeline.md 19).

Of what is ahead of that time the counters per day and minute tell all and the locked ones; the rest of the live ones
are available. Only the minute that the time cuts has to be looked at message by message. Should more stand in it than
`MOST_ENTRIES`, it counts as ahead as a whole, so that watching stays cheap when a campaign comes due: until the minute
is over its messages are told as `waiting` or `processing`. `count` (section 10) is always exact.
"""

from __future__ import annotations

from headrace_core.timeline import keys
from headrace_core.timeline.context import Context
from headrace_core.timeline.load import LAST, Slots, cells
from headrace_core.timeline.message import AVAILABLE, PARKED, PROCESSING, WAITING
from headrace_core.timeline.settings import MAX_MS
from headrace_core.timeline.store import read_slot

MOST_ENTRIES = 2_000


def by_status(context: Context, at_ms: int) -> dict[str, int]:
    """Messages by status at `at_ms` (UTC ms), or at NOW if that is later. O(days + minutes ahead + MOST_ENTRIES)."""
    clock = context.store.clock
    ahead = min(max(at_ms, context.now_ms), MAX_MS) + 1
    in_minute, _ = read_slot(context.store.state.get(keys.minute_key(ahead // keys.MINUTE_MS)))
    if in_minute > MOST_ENTRIES:
        ahead -= ahead % keys.MINUTE_MS
    all_, locked = 0, 0
    for _, messages, of_them_locked in cells(context, Slots(ahead, LAST, ahead, LAST)):
        all_ += messages
        locked += of_them_locked
    return {WAITING: all_ - locked, AVAILABLE: clock.live - all_, PROCESSING: locked, PARKED: clock.parked}
