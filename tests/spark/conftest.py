"""The broker of the Spark tests: one for the session, a fresh topic prefix for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.spark_kafka import broker


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    with broker() as bootstrap:
        yield bootstrap


@pytest.fixture
def topic_prefix() -> str:
    return f"t{uuid.uuid4().hex[:12]}."
