"""The example of the capacity library does what it says, in three processes at once."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest

from tests.support.docker import REPOSITORY
from tests.support.never_over import largest_window
from tests.support.postgres import server

EXAMPLE = REPOSITORY / "capacity" / "examples" / "paced_inserts.py"
LIMIT = 200


@pytest.mark.timeout(180)
def test_three_processes_share_a_capacity_without_spark_or_kafka() -> None:
    with server() as url:
        running = [
            subprocess.Popen([sys.executable, str(EXAMPLE), url, "300"], stderr=subprocess.PIPE) for _ in range(3)
        ]
        for process in running:
            _, errors = process.communicate(timeout=150)
            assert (process.returncode, errors) == (0, b"")
        with psycopg.connect(url) as connection:
            sent = connection.execute(
                "SELECT (extract(epoch FROM sent) * 1e9)::bigint, 1 FROM paced ORDER BY sent"
            ).fetchall()
            values = connection.execute("SELECT count(*), count(DISTINCT value) FROM paced").fetchone()
    assert values == (900, 300)
    assert sent[-1][0] - sent[0][0] > 3_000_000_000, "900 rows at 200 a second"
    # at arrival, not at dispatch: a request of ten rows may be late, and a second one then comes right after it
    assert largest_window(sent) < 2 * LIMIT
