"""The pages of the engines are true: their examples run, their settings are those of the code, their counters too."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.stage import BatchingStage
from headrace_core.capacity.config import BatcherConfig, LeaseConfig
from headrace_core.packing import PackingSettings
from headrace_core.packing.lane import Counts
from headrace_core.registration.config import RegistrationConfig
from headrace_core.registration.stage import RegistrationStage
from headrace_core.state import MemoryState
from headrace_core.timeline.settings import Settings
from headrace_core.timeline.stage import TimelineStage

PAGES = Path("docs/engines")
NAMES = sorted(path.stem for path in PAGES.glob("*.md"))
CONFIGS: dict[str, list[Any]] = {
    "batching": [BatchingConfig()],
    "registration": [RegistrationConfig()],
    "packing": [PackingSettings()],
    "timeline": [Settings()],
    "capacity": [BatcherConfig(), LeaseConfig()],
}
SETTING = re.compile(r"^\| `(\w+)` \| (.+?) \| ", re.MULTILINE)
DERIVED = {"burst_ms": 0}
"""Defaults that stand for another value, which is what the object holds."""


def text(name: str) -> str:
    return (PAGES / f"{name}.md").read_text("utf-8")


def section(name: str, title: str) -> str:
    """What a page says below one heading."""
    return text(name).partition(f"## {title}\n")[2].partition("\n## ")[0]


def test_every_engine_has_its_page() -> None:
    assert sorted(CONFIGS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_print_what_the_page_says(name: str) -> None:
    blocks = re.findall(r"^```pycon\n(.*?)^```", text(name), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, name, f"{name}.md", 0)
    assert len(test.examples) > 5
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert result.failed == 0, "".join(said)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_all_its_parts(name: str) -> None:
    for title in ("What it promises", "States", "Example", "Settings", "What it counts"):
        assert section(name, title).strip(), title


def plain(value: Any) -> Any:
    """A default as JSON has it."""
    return sorted(value) if isinstance(value, frozenset) else msgspec.to_builtins(value)


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_are_those_of_the_code_with_their_defaults(name: str) -> None:
    listed = {setting: json.loads(default) for setting, default in SETTING.findall(section(name, "Settings"))}
    wanted: dict[str, Any] = {}
    for config in CONFIGS[name]:
        fields = getattr(config, "__struct_fields__", None) or config.__dataclass_fields__
        wanted |= {field: DERIVED.get(field, plain(getattr(config, field))) for field in fields}
    assert listed == wanted


def words(name: str) -> set[str]:
    """Everything in backticks below the last heading."""
    return set(re.findall(r"`([^`\n]+)`", section(name, "What it counts")))


def test_every_counter_of_batching_is_on_its_page() -> None:
    assert set(BatchingStage(BatchingConfig()).gauges(MemoryState())) - words("batching") == set()


def test_every_counter_of_registration_is_on_its_page() -> None:
    names = RegistrationStage(RegistrationConfig()).gauges(MemoryState())
    families = {re.sub(r"^(refused|lost|discarded|automatic_refused)[.].*", r"\1.<reason>", name) for name in names}
    assert families - words("registration") == set()


def test_every_gauge_of_the_timeline_is_on_its_page() -> None:
    assert set(TimelineStage(Settings()).gauges(MemoryState())) - words("timeline") == set()


def test_every_count_of_packing_is_on_its_page() -> None:
    assert set(Counts._fields) - words("packing") == set()
