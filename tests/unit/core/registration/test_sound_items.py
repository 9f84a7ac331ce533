"""What needs no parser to be known as JSON is JSON; and an item that is read once derives what reading it twice did."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_core.registration.items import _plain_json, key, sound, sound_items
from headrace_core.registration.message import read_json

CHARACTERS = st.text(st.sampled_from('"\\ a~\x7f\x1fé0129-.eE,:[]{}nulltruefas\n'), max_size=8)


@settings(max_examples=100, deadline=None)
@given(CHARACTERS | st.from_regex(r'-?[0-9]{1,17}|"[^"]{0,4}"', fullmatch=True))
@example("-0")
@example("007")
@example('"a\n"')
@example("1\n")
def test_what_looks_plain_is_json(text: str) -> None:
    raw = text.encode()
    if _plain_json(raw):
        assert read_json(raw) == json.loads(text)


@pytest.mark.parametrize("value", [b'"d7"', b"12", b"-3", b"null", b"true"])
def test_short_texts_and_whole_numbers_are_plain(value: bytes) -> None:
    assert _plain_json(value)


@pytest.mark.parametrize(
    ("raw", "value", "whole"),
    [
        (key(b"T", "te", "device/a//") + b"n", b'"x"', True),
        (key(b"T", "te", "device/a//") + b"n", b'"x', False),
        (key(b"T", "te", "device/a//") + b"n", b'{"a":[1.5]}', True),
        (key(b"E", "te", "device/a//"), b"\xc1", False),
        (b"Ete", b"\x97", False),
        (b"nin", bytes(8), True),
        (b"nin", bytes(7), False),
        (b"H", b"\x90", True),
        (b"H", b"\x01", False),
    ],
)
def test_damaged_items_derive_nothing_and_are_told(raw: bytes, value: bytes, whole: bool) -> None:
    assert sound(raw, value) is whole
    assert sound_items(raw, value) == ({} if whole else None)
