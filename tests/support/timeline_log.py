"""timelines.desk.Mail without Kafka: each letter is applied by the real stage at once, its replies are there at once.

`now` is the log's clock. `lost` are operations whose replies never come; `dead` partitions apply nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace_api.timelines.desk import Letter
from headrace_core.stage import Emission, Record
from headrace_core.state import MemoryState
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.stage import TimelineStage

LONG_S = 0.02
"""Nothing is under way here: what is not there after this will never come."""


class Box:
    """timelines.desk.Box."""

    def __init__(self, read: Callable[[bytes], Any], waits_s: float | None) -> None:
        self.read, self.waits_s = read, waits_s
        self.arrived: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def next(self, seconds: float) -> Any:
        wait = seconds if self.waits_s is None else min(seconds, self.waits_s)
        found = await asyncio.wait_for(self.arrived.get(), wait)
        if isinstance(found, Exception):
            raise found
        return self.read(found)


class TimelineLog:
    """The logs of all timelines, their owners, and the topic of replies."""

    name = "api-1"

    def __init__(self, **timelines: Settings) -> None:
        self.timelines = timelines
        self.now = 1_000_000
        self.closed, self.starts = "", False
        self.lost: set[str] = set()
        self.dead: set[int] = set()
        self.fails: dict[str, Exception] = {}
        self.patience_s: float | None = LONG_S
        self.letters: list[Letter] = []
        self.emitted: list[Emission] = []
        self._number = 0
        self._boxes: dict[bytes, Box] = {}
        self._stages: dict[tuple[str, int], tuple[TimelineStage, MemoryState]] = {}
        self._offsets: dict[tuple[str, int], int] = {}

    def away(self) -> str:
        return self.closed

    def starting(self) -> bool:
        return self.starts

    async def partitions(self, topic: str) -> int:
        settings = self.timelines.get(topic.split(".")[1])
        return 0 if settings is None else settings.partitions

    async def owners(self, topic: str) -> dict[int, str]:
        """Odd partitions have one that is known."""
        return {number: f"w{number}@host" for number in range(1, await self.partitions(topic), 2)}

    def correlation(self) -> str:
        self._number += 1
        return f"api-1-{self._number}"

    @contextmanager
    def post(self, letter: Letter, correlation: str, read: Callable[[bytes], Any]) -> Iterator[Box]:
        box = self._boxes[correlation.encode()] = Box(read, self.patience_s)
        self.letters.append(letter)
        try:
            op = dict(letter.headers)["tl-op"].decode()
            if op in self.fails:
                box.arrived.put_nowait(self.fails[op])
            elif letter.partition not in self.dead:
                self.apply(letter, lost=op in self.lost)
            yield box
        finally:
            del self._boxes[correlation.encode()]

    def apply(self, letter: Letter, *, lost: bool = False) -> None:
        """One record of a timeline's log, at `now`."""
        name = letter.topic.split(".")[1]
        place = name, letter.partition
        if place not in self._stages:
            self._stages[place] = TimelineStage(self.timelines[name], name, buffer_fixed=True), MemoryState()
        stage, state = self._stages[place]
        offset = self._offsets[place] = self._offsets.get(place, -1) + 1
        headers = tuple(letter.headers)
        record = Record(letter.partition, offset, self.now, letter.key, letter.value, headers)
        emitted: list[Emission] = []
        stage.apply(state, record, emitted.append)
        self.emitted += emitted
        for one in emitted:
            box = self._boxes.get(one.key or b"")
            if one.topic == "replies" and box is not None and not lost:
                assert dict(one.headers)["tl-reply-to"] == self.name.encode()
                box.arrived.put_nowait(one.value or b"")

    def deploy(self, name: str, settings: Settings) -> None:
        """The workers start again with these settings; the log and the state are as they were."""
        self.timelines[name] = settings
        for place, (_, state) in self._stages.items():
            if place[0] == name:
                self._stages[place] = TimelineStage(settings, name, buffer_fixed=True), state

    def settings(self, name: str, partition: int) -> Settings:
        """Those in force in a partition."""
        stage, state = self._stages[name, partition]
        return stage.engine(partition).settings(state)

    def forget(self) -> None:
        """All timelines are as they were before anything was written."""
        self._stages.clear()
        self._offsets.clear()

    def tick(self, name: str = "jobs") -> None:
        """What the owner writes when something is due, in every partition."""
        for number in range(self.timelines[name].partitions):
            self.apply(Letter(f"timeline.{name}.commands", number, None, b"", [("kind", b"tick")]))

    def sent(self, op: str) -> list[Letter]:
        """The commands of one operation, in order."""
        return [one for one in self.letters if dict(one.headers)["tl-op"] == op.encode()]
