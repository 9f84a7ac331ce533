"""Runs a stage over a log in chunks and crashes it at every step of `streams.md` 2; only what is durable is kept.

Durable are the outputs that were produced (some of a chunk's, if the crash comes in between), the changelog (a chunk's
batch whole or not at all) and the store (one write batch). A restart begins from the store, or the changelog alone.
On demand there are late writers, too (see `late_writers`): a copy of the owner applies a chunk of its own, and its
outputs are put out at once, but its batch comes to the changelog when others have gone on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from headrace_core.stage import Emission, Record, Stage, header
from headrace_core.state import MemoryState, Overlay
from tests.support.late_writers import MARKER, Group, Writer

STEPS = ("before outputs", "between outputs", "after outputs", "after changelog", "after store", None, None, None)


class Simulation:
    """One partition of one stage under crashes drawn from `seed`."""

    def __init__(
        self, make: Callable[[], Stage], log: Sequence[Record], seed: int, *, late_writers: bool = False
    ) -> None:
        self._make, self._log, self._dice = make, log, random.Random(seed)
        self._late_writers = late_writers
        self._late: list[Group] = []
        self.stage = make()
        self.store, self.next, self.replayed = MemoryState(), 0, 0
        self.changelog: dict[bytes, tuple[int, bytes | None]] = {}
        """Per key the value of the highest source offset, and that."""
        self.changelog_next = 0
        self.outputs: list[Emission] = []
        self.crashes = 0

    def run(self) -> Simulation:
        """Until the whole log is applied."""
        while self.next < len(self._log):
            step = self._dice.choice(STEPS)
            if self._late_writers:
                self._late_writer()
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
        primary = [(key, value, end - 1) for key, value in overlay.mutations.items() if key[0] in self.stage.primary]
        self._append([*primary, (MARKER, b"{}", end - 1)])
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
            items = {key: value for key, (_, value) in sorted(self.changelog.items()) if value is not None}
            self.store, self.next = MemoryState(items), self.changelog_next
            for key, value in items.items():
                self.stage.derive(self.store, key, value)
        if not self._late:  # nor is the owner, now: the cleaner takes tombstones
            self.changelog = {key: item for key, item in self.changelog.items() if item[1] is not None}

    def _late_writer(self) -> None:
        """Sometimes one falls asleep with a chunk in its hands, sometimes one awakes."""
        if self._dice.random() < 0.1:
            records = self._log[self.next : self.next + self._dice.randint(1, 40)]
            sleeper = Writer(self._make(), MemoryState(self.store.snapshot()))
            self._late.append(sleeper.chunk(records, self.outputs.append))
        while self._late and self._dice.random() < 0.3:
            self._append(self._late.pop(self._dice.randrange(len(self._late))))

    def _append(self, group: Group) -> None:
        for key, value, source in group:
            if key == MARKER:
                self.changelog_next = max(self.changelog_next, source + 1)
            elif source >= self.changelog.get(key, (-1, None))[0]:
                self.changelog[key] = source, value

    def distinct(self) -> list[tuple[str, bytes, bytes | None]]:
        """The outputs (topic, id, bytes) in order without repeats; a repeat with other bytes is an error."""
        first: dict[tuple[str, bytes], bytes | None] = {}
        for emission in self.outputs:
            id_ = header(emission.headers, "id")
            assert id_ is not None, f"an output without id: {emission}"
            value = first.setdefault((emission.topic, id_), emission.value)
            assert value == emission.value, f"{id_!r} was repeated with other bytes"
        return [(topic, id_, value) for (topic, id_), value in first.items()]
