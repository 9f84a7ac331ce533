"""Runs a stage over a log in chunks and crashes it at every step of `streams.md` 2; only what is durable is kept.

Durable are the outputs that were produced (some of a chunk's, if the crash comes in between), the changelog (a chunk's
batch whole or not at all) and the store (one write batch). A restart begins from the store, or the changelog alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from headrace_core.stage import Emission, Record, Stage, header
from headrace_core.state import MemoryState, Overlay

STEPS = ("before outputs", "between outputs", "after outputs", "after changelog", "after store", None, None, None)


class Simulation:
    """One partition of one stage under crashes drawn from `seed`."""

    def __init__(self, make: Callable[[], Stage], log: Sequence[Record], seed: int) -> None:
        self._make, self._log, self._dice = make, log, random.Random(seed)
        self.stage = make()
        self.store, self.next, self.replayed = MemoryState(), 0, 0
        self.changelog: dict[bytes, bytes] = {}
        self.changelog_next = 0
        self.outputs: list[Emission] = []
        self.crashes = 0

    def run(self) -> Simulation:
        """Until the whole log is applied."""
        while self.next < len(self._log):
            step = self._dice.choice(STEPS)
            if self._chunk(step):
                self.crashes += 1
                self._restart()
        return self

    def _chunk(self, crash: str | None) -> bool:
        records = self._log[self.next : self.next + self._dice.randint(1, 40)]
        overlay, emissions = Overlay(self.store), list[Emission]()
        for record in records:
            self.stage.apply(overlay, record, emissions.append)
        if crash == "before outputs":
            return True
        if crash == "between outputs":
            self.outputs += emissions[: self._dice.randint(0, len(emissions))]
            return True
        self.outputs += emissions
        if crash == "after outputs":
            return True
        end = self.next + len(records)
        for key, value in overlay.mutations.items():
            if key[0] in self.stage.primary:
                _write(self.changelog, key, value)
        self.changelog_next = end
        if crash == "after changelog":
            return True
        for key, value in overlay.mutations.items():
            if value is None:
                self.store.delete(key)
            else:
                self.store.put(key, value)
        self.next = end
        return crash == "after store"

    def _restart(self) -> None:
        """The changelog is ahead of the store, or the store is lost: restore from it; else go on from the store."""
        self.stage = self._make()
        if self.changelog_next > self.next or self._dice.random() < 0.2:
            self.store, self.next = MemoryState(self.changelog), self.changelog_next
            for key in sorted(self.changelog):
                self.stage.derive(self.store, key, self.changelog[key])

    def distinct(self) -> list[tuple[str, bytes, bytes | None]]:
        """The outputs (topic, id, bytes) in order without repeats; a repeat with other bytes is an error."""
        first: dict[tuple[str, bytes], bytes | None] = {}
        for emission in self.outputs:
            id_ = header(emission.headers, "id")
            assert id_ is not None, f"an output without id: {emission}"
            value = first.setdefault((emission.topic, id_), emission.value)
            assert value == emission.value, f"{id_!r} was repeated with other bytes"
        return [(topic, id_, value) for (topic, id_), value in first.items()]


def _write(items: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        items.pop(key, None)
    else:
        items[key] = value
