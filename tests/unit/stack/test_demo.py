"""What the demo makes of a stack that stops answering."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace import demo, settling
from headrace.evidence import Unreachable
from headrace.stack import LocalStack
from headrace.supervisor import ServiceDied
from tests.unit.stack.test_settling import AT


class Dying:
    """A stack whose service is seen to be dead only at the third look."""

    def __init__(self, after: int) -> None:
        self._left = after

    def check(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ServiceDied("streams", -9, "last words")

    def start_archive(self) -> None:
        pass


def unreachable(*_: Any, **__: Any) -> list[str]:
    raise Unreachable("http://127.0.0.1:1: no connection")


def test_a_service_that_does_not_answer_because_it_died_is_blamed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settling, "settle", unreachable)
    with pytest.raises(ServiceDied, match="last words"):
        demo.measure(cast(LocalStack, Dying(3)), AT, 1, 1, 1)


def test_a_service_that_lives_but_does_not_answer_is_unreachable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settling, "settle", unreachable)
    monkeypatch.setattr(demo, "BLAME_S", 0.2)
    with pytest.raises(Unreachable):
        demo.measure(cast(LocalStack, Dying(1000)), AT, 1, 1, 1)


def test_a_stack_that_is_not_quiet_before_the_run_is_not_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settling, "settle", lambda *_, **__: ["writer: 7 batches are not written"])
    monkeypatch.setattr(demo, "BLAME_S", 0.0)
    with pytest.raises(Unreachable, match="7 batches are not written"):
        demo.measure(cast(LocalStack, Dying(1000)), AT, 1, 1, 1)
