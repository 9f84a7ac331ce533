"""Reads beside a plain map: whatever is remembered, every answer is the base's."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.state import Item, MemoryState, Overlay, first
from headrace_streams.reads import MOST_PREFIXES, Reads

KEYS = [
    bytes([family]) + name + bytes([number]) for family in b"ab" for name in (b"", b"x", b"yy") for number in (1, 2, 9)
]
STARTS = [b"a", b"b", b"ax", b"ayy", b"byy", b"ax\x01", b"ayy\x02"]
OPERATION = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS)),
    st.tuples(st.just("delete"), st.sampled_from(KEYS)),
    st.tuples(st.just("get"), st.sampled_from(KEYS)),
    st.tuples(st.just("scan"), st.sampled_from(STARTS)),
    st.tuples(st.just("part"), st.sampled_from(STARTS)),
    st.tuples(st.just("commit"), st.just(b"")),
)


class Counting(MemoryState):
    """Counts what reaches the database."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = self.scans = 0
        found = self.get

        def get(key: bytes) -> bytes | None:
            self.gets += 1
            return found(key)

        self.get = get

    def scan(self, start: bytes, stop: bytes, /) -> Iterator[Item]:
        self.scans += 1
        return super().scan(start, stop)


@given(st.lists(OPERATION, max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_chunk_reads_what_it_would_read_without(operations: list[tuple[str, bytes]]) -> None:
    base, plain = MemoryState(), MemoryState()
    reads = Reads(base)
    mine, theirs = Overlay(reads.begin()), Overlay(plain)
    for number, (what, key) in enumerate(operations):
        match what:
            case "put":
                mine.put(key, b"%d" % number)
                theirs.put(key, b"%d" % number)
            case "delete":
                mine.delete(key)
                theirs.delete(key)
            case "get":
                assert mine.get(key) == theirs.get(key)
            case "scan":
                stop = key + b"\xff" * 9
                assert list(mine.scan(key, stop)) == list(theirs.scan(key, stop))
            case "part":
                stop = key + b"\x05" if len(key) > 1 else b"axy"
                assert first(mine, key, stop) == first(theirs, key, stop)
            case "commit":
                base.commit(mine.mutations)
                plain.commit(theirs.mutations)
                reads.committed(mine.mutations)
                mine, theirs = Overlay(reads.begin()), Overlay(plain)
    assert list(mine.scan(b"a", b"c")) == list(theirs.scan(b"a", b"c"))


def test_a_key_is_read_once_a_chunk() -> None:
    base = Counting()
    base.put(b"ak", b"1")
    reads = Reads(base)
    assert [reads.get(b"ak"), reads.get(b"ak"), reads.get(b"an"), reads.get(b"an")] == [b"1", b"1", None, None]
    assert base.gets == 2
    assert reads.begin().get(b"ak") == b"1"
    assert base.gets == 3


def test_a_prefix_that_was_empty_is_followed_without_scans() -> None:
    base = Counting()
    reads = Reads(base)
    assert list(reads.scan(b"asource", b"asource\xff")) == []
    for number in range(50):
        key = b"asource%03d" % number
        reads.put(key, b"v")
        assert list(reads.scan(b"asource", b"asource\xff")) == [(key, b"v")]
        assert list(reads.scan(key + b"\0", b"asource\xff")) == []
        reads.delete(key)
    assert base.scans == 1


def test_a_family_is_scanned_from_where_something_is_left() -> None:
    starts: list[bytes] = []

    class Seen(MemoryState):
        def scan(self, start: bytes, stop: bytes, /) -> Iterator[Item]:
            starts.append(start)
            return super().scan(start, stop)

    reads = Reads(Seen())
    reads.put(b"d5", b"")
    assert list(reads.scan(b"d", b"e")) == [(b"d5", b"")]
    reads.put(b"d7", b"")
    reads.put(b"d3", b"")
    assert next(reads.scan(b"d", b"e")) == (b"d3", b"")
    reads.delete(b"d3")
    reads.delete(b"d5")
    assert list(reads.scan(b"d", b"e")) == [(b"d7", b"")]
    assert list(reads.scan(b"d", b"e")) == [(b"d7", b"")]
    assert starts == [b"d", b"d3", b"d3", b"d7"]


def test_what_is_remembered_is_bounded() -> None:
    reads = Reads(MemoryState())
    for number in range(MOST_PREFIXES + 10):
        assert list(reads.scan(b"a%06d" % number, b"a%06d\xff" % number)) == []
    assert len(reads._living) <= MOST_PREFIXES
