"""Events to listeners, outside all engine locks (capacity.md 10).

A bounded queue between the engine and one thread: a slow listener delays nobody, what does not fit is counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from headrace_core.capacity.events import Event

QUEUE_SIZE = 10_000
Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Token:
    """Names a listener for its removal."""

    number: int


class Delivery:
    """Listeners run in the order in which they were added; one that raises is counted in `failures`."""

    def __init__(self) -> None:
        self._listeners: dict[Token, Listener] = {}
        self._queue: deque[Event] = deque()
        self._ready = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._added = 0
        self.lost = 0
        self.failures = 0

    def add(self, listener: Listener) -> Token:
        with self._ready:
            self._added += 1
            token = Token(self._added)
            self._listeners[token] = listener
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-events", daemon=True)
                self._thread.start()
            return token

    def remove(self, token: Token) -> None:
        """Safe inside a listener; unknown tokens do nothing."""
        with self._ready:
            self._listeners.pop(token, None)

    def put(self, events: Iterable[Event]) -> None:
        with self._ready:
            if not self._listeners:
                return
            for event in events:
                if len(self._queue) >= QUEUE_SIZE:
                    self.lost += 1
                else:
                    self._queue.append(event)
            self._ready.notify()

    def close(self, timeout_s: float) -> None:
        """Deliver what is queued, for `timeout_s` seconds at most, and end the thread."""
        with self._ready:
            self._closed = True
            self._ready.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (event := self._next()) is not None:
            with self._ready:
                listeners = list(self._listeners.items())
            for token, listener in listeners:
                if token not in self._listeners:
                    continue
                try:
                    listener(event)
                except Exception:
                    self.failures += 1

    def _next(self) -> Event | None:
        with self._ready:
            while not self._queue and not self._closed:
                self._ready.wait()
            return self._queue.popleft() if self._queue else None
