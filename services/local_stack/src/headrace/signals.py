"""Ctrl-C, SIGTERM and the death of the terminal, as one exception in the main thread.

The first signal raises `Interrupted`; what comes while the stack is being stopped changes nothing, so that a second
Ctrl-C cannot leave processes behind.

The kernel tells a terminal's death (SIGHUP) to its session's leader only, and to the others when the leader ends. A
leader that waits for us, as `make` does under `ssh -t host make demo`, never ends; so a terminal is watched as well.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STDERR = 2
WATCH_MS = 500
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Told to stop by `number`. Not an Exception: no handler of errors shall swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Within: the first of `SIGNALS` raises Interrupted, further ones are ignored. Main thread only."""

    def told(number: int, _: FrameType | None) -> None:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise Interrupted(number)

    before = {one: signal.signal(one, told) for one in SIGNALS}
    done = threading.Event()
    if os.isatty(STDERR):
        threading.Thread(target=_watch_terminal, args=(done,), daemon=True).start()
    try:
        yield
    finally:
        done.set()
        for one, handler in before.items():
            signal.signal(one, handler)


def _watch_terminal(done: threading.Event) -> None:
    """Send ourselves SIGHUP when the terminal is gone."""
    poll = select.poll()
    poll.register(STDERR, 0)
    while not done.is_set():
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(WATCH_MS)):
            os.kill(os.getpid(), signal.SIGHUP)
            return


@contextmanager
def shielded() -> Iterator[None]:
    """Within: `SIGNALS` are ignored, so that what stops the stack is not itself interrupted. No effect outside of the
    main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, signal.SIG_IGN) for one in SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
