"""`verify` (timeline.md 13.7): rebuild all derived keys from the primary ones and report differences."""

from __future__ import annotations

from msgspec.structs import replace

from headrace_core.state import MemoryState
from headrace_core.timeline.context import Answer, Context
from headrace_core.timeline.shape import Args
from headrace_core.timeline.store import derive, derived_families


def verify(context: Context, _args: Args) -> Answer:
    """O(n), for people. `missing`, `wrong` and `surplus` are numbers of derived keys, which are right afterwards."""
    state = context.store.state
    context.store.flush()
    right = MemoryState()
    for family in b"mrw":
        for key, value in state.scan(bytes([family]), bytes([family + 1])):
            derive(right, key, value)
    expected, found = right.snapshot(), derived_families(state)
    missing = [key for key in expected if key not in found]
    surplus = [key for key in found if key not in expected]
    wrong = [key for key in expected if key in found and found[key] != expected[key]]
    for key in surplus:
        state.delete(key)
    for key in missing + wrong:
        state.put(key, expected[key])
    context.store.heads.clear()
    repairs = context.store.clock.repairs + len(missing) + len(surplus) + len(wrong)
    context.store.clock = replace(context.store.clock, repairs=repairs)
    return {"ok": True, "missing": len(missing), "wrong": len(wrong), "surplus": len(surplus)}
