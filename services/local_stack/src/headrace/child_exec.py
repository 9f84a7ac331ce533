"""Becomes a command, as a child that does not outlive its parent: `child_exec.py PARENT MEMORY INTERRUPT COMMAND...`.

What has to be set between fork and exec is set here, in a small process of its own, because Python code that runs
there in a program with threads can hang for ever. PARENT is the pid of the parent: if it died before this process could
ask to be killed with it, this one ends. MEMORY bounds the data segment in bytes (0: no bound). INTERRUPT is what Ctrl-C
does: `default` or `ignore`. Standard library only, and little of it: it is run with `-I -S` to start fast.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def command(argv: Sequence[str], *, memory_bytes: int | None = None, interrupt: str = "default") -> list[str]:
    """`argv` by way of this module. It is killed when the *thread* that starts it ends. Raises FileNotFoundError."""
    if shutil.which(argv[0]) is None:
        raise FileNotFoundError(f"no program {argv[0]!r}")
    here = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(memory_bytes or 0), interrupt]
    return [*here, *argv]


def main(parent: int, memory: int, interrupt: str, argv: list[str]) -> None:
    """Set everything and become `argv`. Raises OSError."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN if interrupt == "ignore" else signal.SIG_DFL)
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
