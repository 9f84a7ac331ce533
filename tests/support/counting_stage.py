"""A small real stage for the runner's tests: counts records per key and emits the count of each record.

Families: `c` + key -> count (primary), `t` -> total (primary), `n` + count + key (derived, an index by count).
A record with the value `boom` raises, as a broken engine would; `wait` makes the stage want ticks until `done`;
`wide` writes 4,000 keys of the family `x` at once; `slow` takes 10 ms; `emit:n` emits n bytes more, `keep:n` wants to
keep n bytes under one key.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headrace_core.stage import Emission, Record, header
from headrace_core.state import State

WIDE_KEYS = 4_000
SLOW_S = 0.01


class CountingStage:
    """See the module."""

    name = "counting"
    primary = b"ctwx"
    input = "raw"
    outputs = ("routed",)

    def apply(self, state: State, record: Record, emit: Callable[[Emission], None]) -> None:
        value = record.value or b""
        if header(record.headers, "kind") == b"tick":
            state.put(b"tticks", _int(_of(state.get(b"tticks")) + 1))
            return
        if record.value == b"boom":
            raise RuntimeError("boom")
        if record.value == b"slow":
            time.sleep(SLOW_S)
        if record.value in (b"wait", b"done"):
            state.put(b"w", record.value)
        if record.value == b"wide":
            for number in range(WIDE_KEYS):
                state.put(b"x" + _int(number), _int(record.offset) * 4)
        size = int(value.partition(b":")[2] or 0)
        if size and value.startswith(b"keep"):
            state.put(b"xkept" + (record.key or b""), bytes(size))
        key = record.key or b""
        old = _of(state.get(b"c" + key))
        new = old + 1
        state.delete(b"n" + _int(old) + key)
        state.put(b"n" + _int(new) + key, b"")
        state.put(b"c" + key, _int(new))
        state.put(b"t", _int(_of(state.get(b"t")) + 1))
        name = f"counting:{record.partition}:{record.offset}:0".encode()
        emit(Emission("routed", key, b"%d" % new, (("id", name),), record.partition))
        if size and value.startswith(b"emit"):
            emit(Emission("routed", key, b"e" * size, (("id", name[:-1] + b"1"), ("topic", b"te/x")), record.partition))

    def derive(self, state: State, key: bytes, value: bytes) -> None:
        if key[:1] == b"c":
            state.put(b"n" + value + key[1:], b"")

    def next_due(self, state: State) -> int | None:
        return 0 if state.get(b"w") == b"wait" else None

    def gauges(self, state: State) -> Mapping[str, int]:
        return {"total": _of(state.get(b"t")), "ticks": _of(state.get(b"tticks"))}

    def forget(self) -> None:
        """There are no caches."""


class MendedStage(CountingStage):
    """The same with the error mended: `boom` is a record like others."""

    def apply(self, state: State, record: Record, emit: Callable[[Emission], None]) -> None:
        mended = record._replace(value=b"mended") if record.value == b"boom" else record
        super().apply(state, mended, emit)


def _int(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _of(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big")
