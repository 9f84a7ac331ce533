"""The vectors of registration.md, each its own test, straight on the engine (`HEADRACE_VECTORS` = their folder)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace_core.registration import queries
from headrace_core.registration.config import MAIN, RegistrationConfig
from headrace_core.registration.effects import Cleared, Dropped, Passed, Registered, Removed, TwinChanged, Updated
from headrace_core.registration.engine import Engine
from headrace_core.registration.items import parts
from headrace_core.registration.routes import ABSENT, Request, Response
from headrace_core.registration.store import Store
from headrace_core.registration.work import document
from headrace_core.state import MemoryState

FOLDER = Path(os.environ.get("HEADRACE_VECTORS", Path(__file__).parent.parent / "vectors"))
SUITE = json.loads((FOLDER / "registration.json").read_text())


class Run:
    """One vector on one engine; a restart is a new engine over the same durable items."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = RegistrationConfig(**(SUITE["format"]["defaults"] | config))
        self.state = MemoryState()
        self.emitted: list[dict[str, Any]] = []
        self.dropped: list[dict[str, Any]] = []
        self.answers: dict[int, Response] = {}

    def step(self, at: int, step: dict[str, Any]) -> None:
        engine = Engine(self.state, self.config)
        clock = Store(self.state).clock
        receipt = step.get("receipt_time", clock)
        if step["do"] == "restart":
            self.state = MemoryState(self.state.snapshot())
        elif step["do"] == "tick":
            self.take(at, engine.tick(receipt))
        elif step["do"] == "message":
            text = (
                step["text"] if "text" in step else json.dumps(step["json"], ensure_ascii=False, separators=(",", ":"))
            )
            self.take(
                at,
                engine.message(step["topic"], text.encode(), retained=step["retained"], receipt_ms=receipt, ref=at),
            )
        else:
            self.http(at, step, engine, receipt)

    def http(self, at: int, step: dict[str, Any], engine: Engine, receipt: int) -> None:
        path, headers = step["path"], {}
        if "cursor_of" in step:
            path += ("&" if "?" in path else "?") + "cursor=" + self.cursor(step["cursor_of"])
        for name in ("if_match", "if_none_match"):
            if f"{name}_of" in step:
                headers[name.replace("_", "-")] = self.answers[step[f"{name}_of"]].headers["ETag"]
        request = Request(step["method"], path, headers, step.get("body", ABSENT))
        if step["method"] == "GET":
            if receipt > Store(self.state).clock:
                self.take(at, engine.tick(receipt))
            self.answers[at] = queries.answer(self.state, self.config, request)
        else:
            effects, self.answers[at] = engine.request(request, receipt)
            self.take(at, effects)

    def cursor(self, at: int) -> str:
        return cursor_of(self.answers[at]) or ""

    def take(self, at: int, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Registered(root, entity, _, automatic):
                    out = {"out": "register", "entity": f"{root}/{entity}"} | ({"auto": True} if automatic else {})
                case TwinChanged(root, entity, key, value):
                    out = {"out": "twin", "entity": f"{root}/{entity}", "key": key, "value": value}
                case Updated(root, entity, changed):
                    out = {"out": "update", "entity": f"{root}/{entity}", "changed": list(changed)}
                case Passed():
                    out = {"out": "data", "of": effect.message.ref}
                case Cleared():
                    out = {"out": "clear", "topic": effect.topic}
                case Removed(root, entity):
                    out = {"out": "remove", "entity": f"{root}/{entity}"}
                case Dropped():
                    self.dropped.append({"of": effect.message.ref, "step": at, "reason": effect.reason})
                    continue
                case _:
                    continue
            self.emitted.append({"step": at} | out)

    def registered(self) -> dict[str, Any]:
        store, found = Store(self.state), {}
        for raw, _ in self.state.scan(b"E", b"F"):
            root, tid = parts(raw, 2)[0]
            entity = store.entity(root, tid)
            assert entity is not None
            if tid != MAIN:
                found[f"{root}/{tid}"] = {k: v for k, v in document(tid, entity).items() if k != "@topic-id"}
        return found

    def pending(self) -> dict[str, Any]:
        store, found = Store(self.state), {}
        for raw, _ in self.state.scan(b"P", b"Q"):
            root, tid = parts(raw, 2)[0]
            entry, waiting = store.pending(root, tid), store.waiting(root, tid)
            assert entry is not None
            found[f"{root}/{tid}"] = {
                "waiting_for": waiting.parent if waiting else None,
                "metadata": entry.metadata,
                "telemetry": entry.telemetry,
            }
        return found


def cursor_of(answer: Response) -> str | None:
    if isinstance(answer.body, dict):
        return answer.body["next"]
    link = answer.headers.get("Link")
    return link.split("cursor=")[1].split(">")[0] if link else None


def contains(body: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(body, dict) and all(k in body and contains(body[k], v) for k, v in wanted.items())
    return body == wanted and isinstance(body, bool) == isinstance(wanted, bool)


def check_answer(answer: Response, wanted: dict[str, Any]) -> None:
    assert answer.status == wanted["status"], answer
    if "reason" in wanted:
        assert answer.body["reason"] == wanted["reason"]
        assert answer.headers["Content-Type"] == "application/problem+json"
    if "body" in wanted:
        assert answer.body == wanted["body"]
    if "contains" in wanted:
        assert contains(answer.body, wanted["contains"]), answer.body
    if "ids" in wanted:
        items = answer.body["items"] if isinstance(answer.body, dict) else answer.body
        assert [item["@topic-id"] for item in items] == wanted["ids"]
    if "more" in wanted:
        assert (cursor_of(answer) is not None) == wanted["more"]


@pytest.mark.parametrize("vector", SUITE["vectors"], ids=lambda v: v["id"])
def test_vector(vector: dict[str, Any]) -> None:
    """What comes out of the steps is exactly what the vector says."""
    run, expected = Run(vector.get("config", {})), vector["expected"]
    for at, step in enumerate(vector["steps"]):
        run.step(at, step)
    assert run.emitted == expected["emitted"]
    assert run.registered() == expected["registered"]
    assert run.pending() == expected["pending"]
    by_place = lambda d: (d["of"], d["step"])  # noqa: E731
    assert sorted(run.dropped, key=by_place) == sorted(expected["dropped"], key=by_place)
    assert sorted(run.answers) == [wanted["step"] for wanted in expected["http"]]
    for wanted in expected["http"]:
        check_answer(run.answers[wanted["step"]], wanted)
