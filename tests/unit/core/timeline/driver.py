"""A small driver: one engine, one clock, answers as they come."""

from __future__ import annotations

from typing import Any

from headrace_core.state import MemoryState
from headrace_core.timeline.engine import Engine, Outcome
from headrace_core.timeline.settings import Settings


class Driver:
    def __init__(self, **settings: Any) -> None:
        self.settings = Settings(**{"bucket_count": 8, "partitions": 1, **settings})
        self.state, self.engine, self.now = MemoryState(), Engine(self.settings), 0

    def outcome(self, op: str, **args: Any) -> Outcome:
        return self.engine.apply(self.state, self.now, op, {name.rstrip("_"): value for name, value in args.items()})

    def do(self, op: str, **args: Any) -> dict[str, Any]:
        """The answer; `from_` stands for `from`."""
        return self.outcome(op, **args).answer

    def ok(self, op: str, **args: Any) -> dict[str, Any]:
        answer = self.do(op, **args)
        assert answer["ok"], answer
        return answer

    def code(self, op: str, **args: Any) -> str | None:
        return self.do(op, **args).get("code")
