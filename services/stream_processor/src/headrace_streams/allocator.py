"""What the allocator of the C library keeps of memory that has been given back (docs/bench/streams.md, Memory).

A chunk comes and goes as a few buffers of megabytes (what was fetched, the batches that are sent) and as many small
objects; RocksDB adds write buffers in blocks of a megabyte, taken and given back by threads of its own. glibc keeps
such blocks for the next time, and two of its habits make that grow with the luck of the order:
- Its limit above which a block is mapped by itself, and so given back at once, rises up to 32 MiB as soon as one such
  block was freed. From then on large buffers lie between small ones in the heap, and holes stay. `MMAP_BYTES` fixes it,
  above the blocks that every chunk needs: at 256 KiB (and a `TRIM_BYTES` of 1 MiB) each chunk paid for fresh pages, 1.8
  us a message of registration.
- Every thread gets an arena of its own, up to eight a core, which keeps what its thread has freed. Python's small
  objects do not come from there, so two arenas are enough for the threads that are left.

What has been freed inside the heap goes back by `trim`, now and then. Another C library (musl) has neither habit nor
calls: there all of this does nothing.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

MMAP_BYTES = 4 * 1024 * 1024
ARENAS = 2
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
TRIM_BYTES = 64 * 1024 * 1024


@cache
def _glibc() -> Any:
    """The C library of the process, if it is glibc; else None."""
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version, library.mallopt, library.malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    return library


def bound() -> bool:
    """Set the limits, before threads are started. Returns whether this C library has taken them."""
    library = _glibc()
    if library is None:
        return False
    limits = ((_M_MMAP_THRESHOLD, MMAP_BYTES), (_M_TRIM_THRESHOLD, TRIM_BYTES), (_M_ARENA_MAX, ARENAS))
    return all(library.mallopt(name, value) == 1 for name, value in limits)


def trim() -> bool:
    """Give whole free pages back, without the interpreter lock. Returns whether there were any."""
    library = _glibc()
    return library is not None and bool(library.malloc_trim(0))
