"""The example of the capacity library does what it says, in three processes at once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest

from headrace.windows import highest
from tests.support.docker import REPOSITORY
from tests.support.postgres import server

GUIDE = REPOSITORY / "docs" / "capacity.md"
AS_IN_THE_GUIDE = """
import sys, time, importlib.abc, psycopg

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "confluent_kafka", "faust", "headrace", "headrace_spark"}:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Missing())
url, requests = sys.argv[1], [range(first, first + 10) for first in range(0, 300, 10)]

def insert(batch):
    with psycopg.connect(url) as connection:
        for operation in batch:
            connection.cursor().executemany("INSERT INTO guide VALUES (%s)", [(row,) for row in operation.payload])

def failed(batch, error):
    print(batch[0].payload, error, file=sys.stderr)

began = time.monotonic()
"""
ITS_END = """
assert left == [], left
assert time.monotonic() - began > 1, "row 201 goes out a second after row 1, at the earliest"
"""
EXAMPLE = REPOSITORY / "capacity" / "examples" / "paced_inserts.py"
LIMIT = 200


ENDED = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server() as running:
        yield running


def start(url: str, rows: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(EXAMPLE), url, str(rows)], stderr=subprocess.PIPE)


def test_three_processes_share_a_capacity_without_spark_or_kafka(url: str) -> None:
    running = [start(url, 300) for _ in range(3)]
    for process in running:
        _, errors = process.communicate(timeout=800)
        assert (process.returncode, errors) == (0, b"")
    with psycopg.connect(url) as connection:
        sent = connection.execute(
            "SELECT (extract(epoch FROM sent) * 1e9)::bigint, 1 FROM paced ORDER BY sent"
        ).fetchall()
        values = connection.execute("SELECT count(*), count(DISTINCT value) FROM paced").fetchone()
    assert values == (900, 300)
    assert sent[-1][0] - sent[0][0] > 3_000_000_000, "900 rows at 200 a second"
    # at arrival, not at dispatch: a request of ten rows may be late, and a second one then comes right after it
    assert highest(sent) < 2 * LIMIT


def test_the_example_in_the_guide_runs_as_written_without_spark_or_kafka(url: str) -> None:
    text = GUIDE.read_text(encoding="utf-8").partition("## Without Spark or Kafka")[2]
    code = text.partition("```python\n")[2].partition("```")[0]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE guide (value int)")
        whole = [sys.executable, "-c", AS_IN_THE_GUIDE + code + ITS_END, url]
        ran = subprocess.run(whole, capture_output=True, timeout=150, check=False)
        assert (ran.returncode, ran.stderr) == (0, b"")
        found = connection.execute("SELECT count(*), count(DISTINCT value) FROM guide").fetchone()
    assert found == (300, 300)


def test_what_fails_is_tried_again_and_the_process_ends(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS paced")
        process = start(url, 1000)  # seconds, so that it is at work when its connection is ended
        ends = time.monotonic() + 600
        while not _rows(connection):
            assert time.monotonic() < ends
            time.sleep(0.05)
        connection.execute(ENDED)
        _, errors = process.communicate(timeout=800)
        assert process.returncode == 0, errors
        assert b"range(" in errors, "an insert whose connection was ended is told"
        assert b"given up" not in errors
        assert _rows(connection) == 1000


def _rows(connection: psycopg.Connection[tuple[int]]) -> int:
    """How many of the numbers are there; 0 before there is a table."""
    if connection.execute("SELECT to_regclass('paced')").fetchone() == (None,):
        return 0
    found = connection.execute("SELECT count(DISTINCT value) FROM paced").fetchone()
    assert found is not None
    return found[0]
