"""How deep a payload may be nested is a rule of the text, not of the reader's stack; stages and restoring agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace_core.nesting import DEEPEST, is_too_deep
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.stage import Emission, Record
from headrace_core.state import MemoryState

FRAMES = 300
"""About as many as a web framework has below a handler, and then some."""


def deeper(frames: int, call: Callable[[], object]) -> object:
    return deeper(frames - 1, call) if frames else call()


@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}")])
def test_it_counts_levels(opened: str, closed: str) -> None:
    for depth in (0, 1, DEEPEST - 1, DEEPEST):
        assert not is_too_deep(opened * depth + "1" + closed * depth)
    for depth in (DEEPEST + 1, 2000):
        assert is_too_deep(opened * depth + "1" + closed * depth)
        assert is_too_deep(opened * depth)
    assert not is_too_deep("[" + ",".join(["[]", "{}", '"[[\\"{{"'] * DEEPEST) + "]")


@pytest.mark.parametrize("text", ['"' + '\\"[' * 400_000, '"\\' * 400_000 + "[" * 600, '"\\\n["' * 400_000])
def test_a_text_whose_strings_do_not_end_is_looked_at_once(text: str) -> None:
    is_too_deep(text)


MESSAGES = {
    "registration": lambda value: (b'{"@type":"child-device","x":%b}' % value, ("topic", b"te/device/a//")),
    "twin": lambda value: (value, ("topic", b"te/device/a///twin/x")),
    "request": lambda value: (
        b'{"method":"PUT","path":"/te/v1/entities/device/a///twin/x","correlation":"c","body":%b}' % value,
        ("kind", b"request"),
    ),
}


@pytest.mark.parametrize("levels", [DEEPEST - 1, DEEPEST + 1, 950, 980, 3000])
@pytest.mark.parametrize("message", MESSAGES)
def test_what_a_deep_value_does_depends_on_nobodys_stack_and_survives_a_restore(message: str, levels: int) -> None:
    stage = RegistrationStage(RegistrationConfig())
    value, header = MESSAGES[message](b'{"a":' * levels + b"1" + b"}" * levels)
    records = [
        Record(0, 0, 10, b"te", b'{"@type":"child-device"}', (("topic", b"te/device/a//"),)),
        Record(0, 1, 20, b"te", value, (header,)),
    ]

    def run() -> tuple[MemoryState, list[Emission]]:
        state, out = MemoryState(), list[Emission]()
        for record in records:
            stage.apply(state, record, out.append)
        stage.forget()
        return state, out

    def restored(state: MemoryState) -> MemoryState:
        again = MemoryState({key: value for key, value in state.snapshot().items() if key[0] in stage.primary})
        for key, item in again.snapshot().items():
            stage.derive(again, key, item)
        return again

    state, out = run()
    deep_state, deep_out = deeper(FRAMES, run)  # type: ignore[misc]
    assert deep_out == out
    assert deep_state.snapshot() == state.snapshot()
    assert restored(state).snapshot() == state.snapshot()
    assert deeper(FRAMES, lambda: restored(state)).snapshot() == state.snapshot()  # type: ignore[attr-defined]
    kept = any(key[:1] == b"T" for key in state.snapshot())
    assert kept is (levels < DEEPEST)
