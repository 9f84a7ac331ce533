"""Server-sent events of a root's registration changes (registration.md 13), from the `EventLog` to many clients.

A stream begins now, or behind `Last-Event-ID`. If events behind that are not kept any more it begins with one `reset`:
the client reads the list anew. A comment every 15 s shows that the connection lives; it carries the id of the place
reached, so a stream whose filter lets little through can be resumed, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from headrace_api.events import Events, TooOld
from headrace_api.wakeup import Wakeup

COMMENT_S = 15.0
RETRY_MS = 2_000
PAGE = 100


class Stream:
    """One client; `lines` are what it is sent."""

    def __init__(
        self, events: Events, moved: Wakeup, closing: Callable[[], bool], root: str, tid: str | None,
        states: frozenset[str], last: str | None,
    ) -> None:  # fmt: skip
        """`last`: Last-Event-ID. `closing`: whether to end soon."""
        self._events = events
        self._moved = moved
        self._closing = closing
        self._root = root
        self._tid = tid
        self._states = states
        self._last = last
        self._seq = 0
        self._without: frozenset[int] = frozenset()

    async def lines(self) -> AsyncIterator[bytes]:
        """Blocks of the event stream, until the service ends."""
        yield await asyncio.to_thread(self._begin)
        spoken = time.monotonic()
        while not self._closing():
            found, full = await asyncio.to_thread(self._next)
            if found:
                spoken = time.monotonic()
                yield found
            if full:
                continue
            rest = spoken + COMMENT_S - time.monotonic()
            if rest <= 0:
                spoken = time.monotonic()
                yield await asyncio.to_thread(self._comment)
            else:
                await self._moved.wait(min(rest, 1.0))

    def _begin(self) -> bytes:
        retry = f"retry: {RETRY_MS}\n"
        if self._last:
            try:
                self._seq, self._without = self._events.resume(self._root, self._last)
            except TooOld:
                self._seq, ident = self._events.now(self._root)
                return f"{retry}event: reset\nid: {ident}\ndata: {{}}\n\n".encode()
            return f": connected\n{retry}\n".encode()
        self._seq, ident = self._events.now(self._root)
        return f": connected\n{retry}id: {ident}\n\n".encode()

    def _next(self) -> tuple[bytes, bool]:
        """What the filter lets through of the next page, and whether the page was full."""
        page = self._events.after(self._root, self._seq, PAGE)
        found = []
        for event, tid, state in page:
            self._seq = event.seq
            wanted = self._tid in (None, tid) and state in self._states
            if wanted and event.seq not in self._without:
                found.append(b"event: status\nid: %s\ndata: %s\n\n" % (event.id.encode(), event.document))
        return b"".join(found), len(page) == PAGE

    def _comment(self) -> bytes:
        """The place is that before the next event: one that has come meanwhile is behind it."""
        seq, ident = self._events.now(self._root)
        return f": {ident}\nid: {ident}\n\n".encode() if seq == self._seq else b": more is coming\n\n"
