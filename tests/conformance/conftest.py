"""What several suites need of the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import postgres


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL of this file's own."""
    yield from postgres.for_tests()
