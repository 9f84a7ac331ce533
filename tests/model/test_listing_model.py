"""Lists in pages beside a slow model, while entities come, go and get other parents between the pages."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.registration import listing, queries
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.engine import Engine
from headrace_core.registration.routes import Request, Response
from headrace_core.state import MemoryState

CONFIG = RegistrationConfig(auto_register=False)
NAMES = [f"n/{name}//" for name in "abcdefghij"]


class Root:
    """A root that takes registrations and answers lists."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self.ref = 0

    def send(self, name: str, payload: Any) -> None:
        self.ref += 1
        value = b"" if payload is None else json.dumps(payload).encode()
        Engine(self.state, CONFIG).message(f"te/{name}", value, retained=True, receipt_ms=self.ref, ref=self.ref)

    def change(self, dice: random.Random) -> None:
        """Somebody comes, goes, or gets another parent (mostly)."""
        name = dice.choice(NAMES)
        if dice.random() < 0.2:
            self.send(name, None)
        else:
            kind = "service" if name in NAMES[-2:] else "child-device"
            self.send(name, {"@type": kind, "@parent": dice.choice([*NAMES, "device/main//"]), "v": self.ref})

    def ask(self, path: str) -> Response:
        return queries.answer(self.state, CONFIG, Request("GET", path))

    def ids(self, path: str) -> list[str]:
        answer = self.ask(path)
        assert answer.status == 200, answer
        return [entity["@topic-id"] for entity in answer.body]

    def parents(self) -> dict[str, str | None]:
        return {e["@topic-id"]: e.get("@parent") for e in self.ask("/te/v1/entities").body}


def next_path(answer: Response) -> str | None:
    link = answer.headers.get("Link")
    return link[1 : link.index(">")] if link else None


def slow(parents: dict[str, str | None], top: str | None) -> list[str]:
    """Section 12: by depth, then by the path of topic ids from the top."""

    def path(tid: str) -> list[str]:
        above = parents[tid]
        return [tid] if above is None or tid == top else [*path(above), tid]

    places = [(len(path(tid)), path(tid)) for tid in parents]
    return [at[-1] for _, at in sorted(places) if top is None or at[0] == top]


FILTERS = ["", "type=service&", "type=child-device&", "root=n/a&", "root=n/b&type=child-device&", "parent=n/a&",
           "parent=device/main&"]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["", "root=n/a&", "root=device/main&"]), st.integers(1, 5))
def test_pages_of_what_stands_still_are_the_sorted_list(seed: int, filters: str, limit: int) -> None:
    dice, root = random.Random(seed), Root()
    for _ in range(40):
        root.change(dice)
    path: str | None = f"/te/v1/entities?{filters}limit={limit}"
    seen: list[str] = []
    while path:
        seen += root.ids(path)
        path = next_path(root.ask(path))
    top = {"": None, "root=n/a&": "n/a//", "root=device/main&": "device/main//"}[filters]
    assert seen == slow(root.parents(), top)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(FILTERS), st.integers(1, 3), st.sampled_from([0.3, 1.0, 3.0]))
def test_who_is_there_all_the_time_is_returned_exactly_once(seed: int, filters: str, limit: int, speed: float) -> None:
    dice, root = random.Random(seed), Root()
    for _ in range(30):
        root.change(dice)
    path: str | None = f"/te/v1/entities?{filters}limit={limit}"
    whole = f"/te/v1/entities?{filters}"
    throughout, seen = set(root.ids(whole)), list[str]()
    while path:
        answer = root.ask(path)
        seen += [entity["@topic-id"] for entity in answer.body]
        path = next_path(answer)
        before = root.parents()
        for _ in range(round(dice.random() * 2 * speed)):
            root.change(dice)
            throughout &= set(root.ids(whole)) if path else throughout
            throughout -= before.keys() - root.parents().keys()
    assert {tid: seen.count(tid) for tid in throughout} == dict.fromkeys(throughout, 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_the_status_list_too(seed: int, limit: int) -> None:
    dice, root = random.Random(seed), Root()
    path: str | None = f"/te/v1/registrations?limit={limit}"
    for _ in range(30):
        root.change(dice)
    seen, throughout = list[str](), set(NAMES) | {"device/main//"}
    while path:
        known = {s["@topic-id"] for s in root.ask("/te/v1/registrations").body["items"]}
        throughout &= known
        body = root.ask(path).body
        seen += [status["@topic-id"] for status in body["items"]]
        path = body["next"] and f"/te/v1/registrations?limit={limit}&cursor={body['next']}"
        if path:
            root.change(dice)
    assert seen == sorted(seen)
    assert [tid for tid in seen if tid in throughout] == sorted(throughout)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.sets(st.sampled_from(queries.STATES), min_size=1), st.sampled_from(["", "n/a"]))
def test_a_filtered_status_list_is_the_filtered_list(seed: int, states: set[str], waiting_for: str) -> None:
    dice, root = random.Random(seed), Root()
    for _ in range(40):
        root.change(dice)
        root.send(dice.choice(NAMES), {"@type": "rocket"})
    base = "/te/v1/registrations?state="
    everything = root.ask(base + ",".join(queries.STATES)).body["items"]
    found = root.ask(f"{base}{','.join(sorted(states))}&waiting_for={waiting_for}").body["items"]
    above = f"{waiting_for}//" if waiting_for else None
    assert found == [s for s in everything if s["state"] in states and above in (None, s.get("waiting_for"))]


def test_a_changed_parent_neither_hides_nor_repeats() -> None:
    """The entity goes from behind the page to before it, another one the other way."""
    root = Root()
    for name in "abcd":
        root.send(f"n/{name}//", {"@type": "child-device"})
    root.send("n/z//", {"@type": "child-device", "@parent": "n/d//"})
    first = root.ask("/te/v1/entities?limit=3")
    assert [e["@topic-id"] for e in first.body] == ["device/main//", "n/a//", "n/b//"]
    root.send("n/z//", {"@type": "child-device", "@parent": "device/main//", "v": 1})
    root.send("n/a//", {"@type": "child-device", "@parent": "n/d//"})
    second = root.ask(next_path(first) or "")
    assert [e["@topic-id"] for e in second.body] == ["n/c//", "n/d//", "n/z//"]
    assert next_path(second) is None
    assert root.ids("/te/v1/entities") == ["device/main//", "n/b//", "n/c//", "n/d//", "n/z//", "n/a//"]


def test_a_cursor_older_than_the_moves_that_are_remembered_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "KEPT", 3)
    root = Root()
    for name in "abc":
        root.send(f"n/{name}//", {"@type": "child-device"})
    path = next_path(root.ask("/te/v1/entities?limit=1")) or ""
    for turn, above in enumerate(["n/b//", "n/c//", "n/b//"]):
        root.send("n/a//", {"@type": "child-device", "@parent": above, "v": turn})
    assert root.ask(path).status == 200
    root.send("n/a//", {"@type": "child-device", "@parent": "n/c//", "v": 9})
    assert root.ask(path).body["reason"] == "invalid_cursor"
    assert len(list(root.state.scan(b"H", b"I"))) == 3


def test_a_page_reads_about_as_much_as_it_returns() -> None:
    """Whichever page: nothing is scanned from the start."""

    class Counting(MemoryState):
        read = 0

        def scan(self, start: bytes, stop: bytes, /) -> Any:
            for item in super().scan(start, stop):
                Counting.read += 1
                yield item

    root = Root()
    root.state = Counting()
    for n in range(500):
        root.send(f"n/{n:03}//", {"@type": "child-device"})
    for kind in ("entities", "registrations"):
        path: str | None = f"/te/v1/{kind}?limit=10"
        pages = 0
        while path:
            Counting.read = 0
            answer = root.ask(path)
            assert Counting.read < (60 if pages < 50 else 2_000), pages
            cursor = answer.body["next"] if kind == "registrations" else None
            path = f"/te/v1/{kind}?limit=10&cursor={cursor}" if cursor else next_path(answer)
            pages += 1
        assert pages == 51
