"""The page for people: everything that is told is on it, as text, reachable by links, from nowhere else."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headrace_api import page
from headrace_api.examples import MESSAGES, START_MS
from tests.support.status_api import fixture
from tests.unit.api.test_app import Asker, is_problem

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """A page as it is read: tags must be closed in order. `tables` by caption, rows of cell texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.links: dict[str, str] = {}
        self.text = ""
        self._open: list[str] = []
        self._caption = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self._rows: list[list[str]] = []
            self._caption = ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        elif tag == "a":
            self._link = ""

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag == "table":
            self.tables[self._caption] = self._rows
        elif tag == "a":
            hrefs = [a["href"] for t, a in self.tags if t == "a"]
            self.links[self._link] = str(hrefs[-1])

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif "td" in self._open or "th" in self._open:
            self._rows[-1][-1] += data
        if "a" in self._open:
            self._link += data


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Asker]:
    messages: list[tuple[int, str, Any]] = [(START_MS + at, topic, payload) for at, topic, payload in MESSAGES]
    messages += [(START_MS + 6_000, f"r2/device/d{n:03}//", {"@type": "child-device"}) for n in range(120)]
    messages += [(START_MS + 6_000, "te/line/<b>&\"'//", {"@type": "child-device", "@parent": "line/<i>//"})]
    messages += [(START_MS + 6_000, f"te/line/{n}//", {"@type": "service", "@parent": f"line/{up}//"})
                 for n, up in (("a", "b"), ("b", "a"))]  # fmt: skip
    messages += [(START_MS + 6_000, "te/line/quiet///m/t", {"v": 1})]
    messages += [(START_MS + 6_000, "te/device/gone//", {"@type": "child-device"})]
    messages += [(START_MS + 7_000, "te/device/gone//", b"")]
    yield Asker(fixture(tmp_path, messages, roots={"te": "main-dev", "r2": "main-2"}))


async def test_it_tells_who_is_registered_and_who_is_not_and_why(api: Asker) -> None:
    answer = await api.ask("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    shown = Page(answer.text)
    pending = {row[0]: row for row in shown.tables["Pending: not registered yet"][1:]}
    assert pending["line/oven//"] == [
        "line/oven//", "waits for line/hall//", "6 s", "2025-10-09 09:53:20Z", "1 telemetry, 0 metadata, 111 bytes",
    ]  # fmt: skip
    assert pending["line/a//"][1] == "its ancestors form a cycle: line/b//"
    assert pending["line/quiet//"][1] == "nobody has registered it; its data waits"
    registered = {row[0]: row for row in shown.tables["Registered"][1:]}
    assert registered["device/press//"] == [
        "device/press//", "child-device", "main-dev:device:press", "device/main//", "", "no", "2025-10-09 08:53:20Z",
        "type_change, 2025-10-09 08:53:20Z",
    ]  # fmt: skip
    assert shown.tables["Refused, expired, removed"][1:] == [
        ["device/gone//", "removed", "2025-10-09 08:53:27Z", ""]
    ]  # fmt: skip
    assert ["dropped: type_change", "1"] in shown.tables["Totals of te"]
    assert ["registration: passed", "3"] in shown.tables["Counters"]


async def test_what_devices_say_is_text_and_links_lead_there(api: Asker) -> None:
    answer = await api.ask("/")
    assert "<b>" not in answer.text
    shown = Page(answer.text)
    link = shown.links["line/<b>&\"'//"]
    assert (await api.ask(link)).json()["@topic-id"] == "line/<b>&\"'//"


async def test_long_tables_have_next_pages(api: Asker) -> None:
    shown = Page((await api.ask("/?root=r2")).text)
    first = [row[0] for row in shown.tables["Registered"][1:]]
    shown = Page((await api.ask(shown.links["Next 100: Registered"])).text)
    rest = [row[0] for row in shown.tables["Registered"][1:]]
    assert first + rest == [*(f"device/d{n:03}//" for n in range(120)), "device/main//"]
    assert "Next 100: Registered" not in shown.links
    assert "Nobody is pending." in shown.text
    assert "unknown, or of another query" in Page((await api.ask("/?root=r2&pending=x")).text).text


async def test_it_needs_nothing_from_elsewhere_and_no_script(api: Asker) -> None:
    answer = await api.ask("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert re.findall(r"(?:src|href)=\"(?:https?:|//)", answer.text) == []
    assert "<script" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_it_can_be_used_without_eyes_and_mouse(api: Asker) -> None:
    shown = Page((await api.ask("/?root=r2")).text)
    tags = [tag for tag, _ in shown.tags]
    assert ("html", {"lang": "en"}) in shown.tags
    assert tags.count("h1") == tags.count("main") == tags.count("title") == 1
    assert tags.count("table") == tags.count("caption")
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in shown.tags if tag == "th")
    assert [a["href"] for tag, a in shown.tags if a.get("aria-current") == "page"] == ["/?root=r2"]
    assert next(a["href"] for tag, a in shown.tags if tag == "a") == "#main"


async def test_before_everything_is_read_it_says_so(api: Asker) -> None:
    behind = tuple(replace(p, target=p.offset + 5) for p in api.given.progress.partitions)
    api.given.progress = replace(api.given.progress, partitions=behind)
    answer = await api.ask("/")
    assert "Not ready: 15 records of log are to be read" in Page(answer.text).text
    assert "Registered" not in Page(answer.text).tables


async def test_a_root_that_is_not_there(api: Asker) -> None:
    is_problem(await api.ask("/?root=<x>"), 404, "not_found")


@pytest.mark.parametrize(("at", "words"), [(None, ""), (0, "from the start"), (10**20, "100000000000000000000")])
def test_times_that_are_none(at: int | None, words: str) -> None:
    assert page._time(at) == words
