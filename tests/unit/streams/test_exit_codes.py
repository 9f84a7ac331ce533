"""How the stream processor ends: 0 if it was told to and could, 2 if a person must help, else 70 (start it again)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace_streams import __main__ as program
from headrace_streams.topics import TopicError

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(program.sys, "argv", ["headrace_streams"])
    monkeypatch.setattr(program.logs, "configure", lambda: None)
    monkeypatch.setattr(program.allocator, "bound", lambda: None)
    monkeypatch.setenv("HEADRACE_STREAMS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HEADRACE_STREAMS_KAFKA", NOBODY)


def test_without_kafka_it_is_to_be_started_again() -> None:
    """A supervisor gives up after 2, and an outage of Kafka would be the end of all workers that start in it."""
    assert program.main() == program.FAILED == 70


def test_a_topic_that_does_not_fit_is_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise TopicError("raw has 3 partitions, registration needs 4")

    monkeypatch.setattr(program.topics, "ensure", refused)
    assert program.main() == program.WRONG_SETTING == 2


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(program, "fatal", lambda error, where: told.append(f"{where}: {error}"))
    monkeypatch.setattr(program, "STOP_S", 0.02)
    return told


async def hang() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise RuntimeError("the database is busy")


async def end() -> None:
    """At once."""


async def test_a_chunk_that_cannot_be_finished_ends_the_process_as_an_error_does(ended: list[str]) -> None:
    await program._stop(hang, end)
    await program._stop(fail, end)
    assert ended == ["stop: not stopped within 0.02 s", "stop: the database is busy"]


async def test_what_ends_in_time_is_a_good_end(ended: list[str]) -> None:
    await program._stop(end, end)
    assert ended == []
