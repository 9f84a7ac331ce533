"""Subjects as small numbers, in order of first appearance, so that the packer handles integers only (packing.md 5).

Loops of Python run over distinct ids, never over rows. Where ids repeat, a dictionary numbers them. Where next to none
does (a lane of very many subjects), already one step of Python an id would be most of the packing, so all ids are laid
into one buffer and numpy takes them apart: where is `$`, a 64-bit mix of the bytes before it, a sort by that. Equal
mixes are compared byte by byte, so the numbers are exact; what this way does not cover goes the other one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace_core.packing.ids import UNSPLITTABLE, subject_of

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
SAMPLE = 1000
WORD = 8
LONGEST = 8
"""Words of a subject that the buffer handles."""
MASKS = np.array([(1 << 8 * kept) - 1 for kept in range(WORD + 1)], np.uint64)
FACTOR, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


class Subjects(NamedTuple):
    """`codes`: one subject number per row; `names`: the subjects by number; `unsplittable`: its number, or -1."""

    codes: Ints
    names: Sequence[str]
    unsplittable: int


class Named(Sequence[str]):
    """Subjects by number, read from the row in which each appears first, when they are asked for."""

    def __init__(self, ids: Sequence[str], first_rows: Ints) -> None:
        self._ids = ids
        self._first_rows = first_rows

    def __len__(self) -> int:
        return len(self._first_rows)

    def __getitem__(self, number: int) -> str:  # type: ignore[override]
        return subject_of(self._ids[self._first_rows[number]])


def number_subjects(ids: Sequence[str], table: Mapping[str, str] | None = None) -> Subjects:
    """Number the subjects by first appearance; `table`: see `subject_of`."""
    if not table and len(ids) >= SAMPLE and not _repeat(ids) and (found := _by_bytes(ids)) is not None:
        return found
    distinct = list(dict.fromkeys(ids))  # in order of appearance
    numbers: defaultdict[str, int] = defaultdict(count().__next__)
    code_of_id = {each: numbers[subject_of(each, table)] for each in distinct}
    codes = np.fromiter(map(code_of_id.__getitem__, ids), np.int64, len(ids))
    return Subjects(codes, list(numbers), numbers.get(UNSPLITTABLE, -1))


def _repeat(ids: Sequence[str]) -> bool:
    """Whether ids repeat: a sample has more than next to no repeats."""
    sample = ids[:: len(ids) // SAMPLE]
    return len(set(sample)) < 0.95 * len(sample)


def _by_bytes(ids: Sequence[str]) -> Subjects | None:
    """The numbers without a step of Python an id; None if an id has a line end, a long subject, or mixes collide."""
    text = "\n".join(ids).encode("utf-8", "surrogatepass")
    data = np.frombuffer(text + bytes(WORD * LONGEST), np.uint8)
    ends = np.append(np.flatnonzero(data == ord("\n")), len(text))
    if len(ends) != len(ids):
        return None
    starts = np.append(0, ends[:-1] + 1)
    lengths = _subject_lengths(np.flatnonzero(data == ord("$")), starts, ends)
    if lengths.max() > WORD * LONGEST:
        return None
    words = _words(data, starts, lengths)
    mixed = lengths.astype(np.uint64)
    for word in words:
        mixed = (mixed ^ word) * FACTOR
        mixed ^= mixed >> SHIFT
    return _numbered(ids, lengths, words, mixed)


def _subject_lengths(dollars: Ints, starts: Ints, ends: Ints) -> Ints:
    """Bytes of each id's subject; 0 if the id is unsplittable, as no other subject is empty (packing.md 1)."""
    if not len(dollars):
        return np.zeros(len(starts), np.int64)
    first = np.searchsorted(dollars, starts)
    only = np.searchsorted(dollars, ends) - first == 1
    at = dollars[np.minimum(first, len(dollars) - 1)]
    return np.where(only & (at > starts) & (at < ends - 1), at - starts, 0)


def _words(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> list[Words]:
    """The bytes of all subjects as words, zeros behind the end; column by column."""
    overlapping: Words = np.ndarray((len(data) - WORD + 1,), np.dtype("<u8"), data.data, 0, (1,))
    columns = []
    for first in range(0, int(lengths.max()), WORD):
        kept = np.clip(lengths - first, 0, WORD)
        columns.append(overlapping[np.where(kept, starts + first, 0)] & MASKS[kept])
    return columns


def _numbered(ids: Sequence[str], lengths: Ints, words: list[Words], mixed: Words) -> Subjects | None:
    """Numbers by first appearance of rows that are equal where `mixed` is; None if some of those differ."""
    order = np.argsort(mixed)
    same = np.flatnonzero(mixed[order[1:]] == mixed[order[:-1]])
    first_rows = codes = np.arange(len(ids))
    if len(same):
        left, right = order[same], order[same + 1]
        if any((column[left] != column[right]).any() for column in [lengths, *words]):
            return None
        new = np.ones(len(ids), np.bool_)
        new[same + 1] = False
        first_rows = np.minimum.reduceat(order, np.flatnonzero(new))
        places = np.argsort(np.argsort(first_rows))
        codes = np.empty(len(ids), np.int64)
        codes[order] = places[np.cumsum(new) - 1]
        first_rows = np.sort(first_rows)
    empty = int(np.argmin(lengths))
    return Subjects(codes, Named(ids, first_rows), -1 if lengths[empty] else int(codes[empty]))
