"""Every vector of timeline.json, each as a test of its own; once more restored from primary keys before each step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace_core.partitioner import partition_of
from headrace_core.state import MemoryState, Overlay
from headrace_core.timeline import keys
from headrace_core.timeline.clock_quality import sample
from headrace_core.timeline.engine import Engine
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.store import derive

FOLDER = Path(os.environ.get("HEADRACE_VECTORS", "tests/vectors"))
FILE = json.loads((FOLDER / "timeline.json").read_text("utf-8")) if FOLDER.exists() else {"vectors": [], "settings": {}}


class Runner:
    """Runs the steps of one vector on one engine; each record is a chunk of its own."""

    def __init__(self, settings: dict[str, Any], always_restore: bool) -> None:
        self.settings = msgspec.convert(settings, Settings)
        self.state, self.engine = MemoryState(), Engine(self.settings)
        self.made = 0
        self.always_restore = always_restore

    def step(self, step: dict[str, Any]) -> dict[str, Any]:
        op, args = step["op"], dict(step.get("args", {}))
        if op == "crash":
            self.crash()
            return {"ok": True}
        if op == "place":
            bucket = partition_of(args["id"].encode(), self.settings.bucket_count)
            return {"ok": True, "bucket": bucket, "partition": bucket % self.settings.partitions}
        if op == "clock_sample":
            return {"ok": True, **sample(**args, settings=self.settings)._asdict()}
        if self.always_restore:
            self.crash()
        if op == "create_batch":
            return self.batch(step["at"], args)
        return self.record(step["at"], op, args)

    def record(self, at: int, op: str, args: dict[str, Any]) -> dict[str, Any]:
        if op == "create" and "id" not in args:
            self.made += 1
            args["id"] = f"auto-{self.made}"
        chunk = Overlay(self.state)
        answer = self.engine.apply(chunk, at, op, args).answer
        for key, value in chunk.mutations.items():
            if value is None:
                self.state.delete(key)
            else:
                self.state.put(key, value)
        return {**answer, "body": answer["body"].decode()} if isinstance(answer.get("body"), bytes) else answer

    def batch(self, at: int, args: dict[str, Any]) -> dict[str, Any]:
        results = {}
        answer: dict[str, Any] = {}
        for message in args["messages"]:
            answer = self.record(at, "create", {**message, "group": args["group"]})
            results[answer.get("id", message.get("id"))] = "OK" if answer["ok"] else answer["code"]
        return {**answer, "ok": True, "results": results}

    def crash(self) -> None:
        """What the changelog gives back: primary families, and the rest derived from them."""
        fresh = MemoryState({key: value for key, value in self.state.snapshot().items() if key[0] in keys.PRIMARY})
        for key, value in list(fresh.snapshot().items()):
            derive(fresh, key, value)
        assert fresh.snapshot() == self.state.snapshot()
        self.state, self.engine = fresh, Engine(self.settings)


@pytest.mark.parametrize("always_restore", [False, True], ids=["live", "restored"])
@pytest.mark.parametrize("vector", FILE["vectors"], ids=[vector["name"] for vector in FILE["vectors"]])
def test_timeline_vectors(vector: dict[str, Any], always_restore: bool) -> None:
    runner = Runner(FILE["settings"] | vector.get("settings", {}), always_restore)
    for index, step in enumerate(vector["steps"]):
        answer = runner.step(step)
        for key, value in step.get("expect", {}).items():
            assert key in answer, (index, step, answer)
            assert answer[key] == value, (index, step, answer)
