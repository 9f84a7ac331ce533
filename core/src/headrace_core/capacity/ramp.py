"""Ramp: an increase of capacity becomes effective step by step (capacity.md 15).

The first step comes `per_ms` after the change; a further change during a climb keeps its rhythm; a decrease is
immediate. The state is (`base`, `since_ms`, `target`): `base` was effective at `since_ms`, which is a beat of the
climb. The effective value is computed when it is asked for, so nothing has to run in between.
"""

from __future__ import annotations

import msgspec

from headrace_core.capacity.protocol import RampSetting


class Ramp(msgspec.Struct, frozen=True):
    """One dimension, units per second."""

    base: int
    since_ms: int
    target: int

    def effective(self, setting: RampSetting | None, now_ms: int) -> int:
        """What is effective at `now_ms`; without a setting, the target at once."""
        if setting is None:
            return self.target
        beats = max(0, now_ms - self.since_ms) // setting.per_ms
        return min(self.target, self.base + setting.step * beats)

    def change(self, setting: RampSetting | None, now_ms: int, target: int) -> Ramp:
        """The configured capacity becomes `target` at `now_ms`."""
        effective = self.effective(setting, now_ms)
        if setting is None or target <= effective:
            return Ramp(target, now_ms, target)
        if effective < self.target:
            beats = (now_ms - self.since_ms) // setting.per_ms
            return Ramp(effective, self.since_ms + beats * setting.per_ms, target)
        return Ramp(effective, now_ms, target)


def steady(capacity: int, now_ms: int = 0) -> Ramp:
    """A ramp that is where it should be."""
    return Ramp(capacity, now_ms, capacity)
