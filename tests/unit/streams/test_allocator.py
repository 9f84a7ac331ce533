"""The limits of the allocator: taken by glibc, and nothing where there is none."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace_streams import allocator

GLIBC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version")

HOLES = """
import ctypes, re
from pathlib import Path
from headrace_streams import allocator

def resident():
    return int(re.findall(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[0]) / 1024

bound = {bound} and allocator.bound()
large = bytearray(8 << 20)
del large  # glibc alone would from now on keep blocks of up to 8 MiB in the heap
before = resident()
passing = bytearray(6 << 20)
passing[:] = b"x" * len(passing)
kept = ctypes.create_string_buffer(b"y" * 100_000)  # behind it, so that the heap cannot shrink
del passing
print(resident() - before)
"""


@pytest.fixture(autouse=True)
def _looked_up_anew() -> Iterator[None]:
    allocator._glibc.cache_clear()
    yield
    allocator._glibc.cache_clear()


def test_glibc_takes_the_limits_and_gives_back_what_is_free() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "from headrace_streams import allocator as a; print(a.bound(), a.trim() in (0, 1))"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert told.stdout.split() == [str(GLIBC), "True"]


@pytest.mark.parametrize("bound", [GLIBC, False])
def test_a_large_buffer_that_is_freed_below_another_one_goes_back_to_the_system(bound: bool) -> None:
    told = subprocess.run(
        [sys.executable, "-c", HOLES.format(bound=bound)], capture_output=True, text=True, check=True, timeout=120
    )
    left = float(told.stdout)
    assert left < 2 if bound else left > 4 or not GLIBC, f"{left} MiB of 6 are left"


class Other:
    """A C library without the calls of glibc."""


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Other())
    assert (allocator.bound(), allocator.trim()) == (False, False)


def test_where_there_is_no_c_library_to_ask_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> object:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", refused)
    assert (allocator.bound(), allocator.trim()) == (False, False)
