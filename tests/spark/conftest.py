"""What the black-box tests of the writer share: a way to make a job, and a database of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support import postgres
from tests.support.spark_job import Job, create_topics


@pytest.fixture
def job(tmp_path: Path, kafka: str, topic_prefix: str) -> Iterator[Callable[..., Job]]:
    """Makes a job with changed settings; its topics are there. What still runs afterwards is killed."""
    made: list[Job] = []
    create_topics(kafka, topic_prefix)

    def make(folder: Path | None = None, /, **changes: Any) -> Job:
        folder = folder or tmp_path
        folder.mkdir(exist_ok=True)
        made.append(Job(folder, kafka, topic_prefix, **changes))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    yield from postgres.for_tests()


@pytest.fixture
def database(postgres_server: str, topic_prefix: str) -> str:
    """The URL of an empty database."""
    name = f"db_{topic_prefix.rstrip('.')}"
    with psycopg.connect(postgres_server, autocommit=True) as db:
        db.execute(f'CREATE DATABASE "{name}"')
    return postgres_server.rpartition("/")[0] + f"/{name}"
