"""The writer with its checkpoint on a real HDFS: kill -9, every refusal, and the commands that look after it.

A start of Spark takes long, so one test goes through several cases, one start after the other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from headrace_spark import checkpoint
from headrace_spark.folders.port import Folder
from headrace_spark.jobs.checkpoint import main
from headrace_spark.jobs.folder import checkpoint_folder
from tests.support.hdfs import CLIENT, Hdfs, end_jvm, hdfs
from tests.support.jvm import ROOT
from tests.support.spark_job import SPARK, Job, documents, produce, query, until
from tests.support.standalone import SUBMIT

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as found:
        yield found
        end_jvm()


def command(one: Job, *arguments: str) -> tuple[int, str]:
    """`headrace checkpoint`: its exit code and all that it says."""
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "checkpoint", *arguments, "--config", str(one.config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr


def here(one: Job, *arguments: str) -> tuple[int, str]:
    """The same in this process, which has a JVM."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(out):
        code = main([*arguments, "--config", str(one.config)])
    return code, out.getvalue()


def refusal(one: Job, *, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code of a start, and why it failed: one line of the log, and never a stack trace."""
    before = len(one.log()) if (one.folder / "log").exists() else 0
    code = one.run(environment=environment)
    said = one.log()[before:]
    assert not [line for line in said.splitlines() if line.startswith(("Traceback", "\tat "))], said
    return code, next(json.loads(line)["error"] for line in said.splitlines() if '"event": "failed"' in line)


def opened(one: Job) -> Folder:
    return checkpoint_folder(one.settings["checkpoint"], {**SPARK, **CLIENT})


def newest(folder: Folder, name: str) -> int:
    return max(int(file) for file in folder.names(name) if file.isdigit())


def test_a_checkpoint_on_hdfs_over_kill_9_damage_and_repair(job: Callable[..., Job], server: Hdfs) -> None:
    one = job(checkpoint=f"{server.url}/jobs/writer", spark=CLIENT)
    folder = opened(one)

    # case 1: killed between the sink's commit and the commit log
    produce(one, documents(10))
    one.start(environment={"HEADRACE_SPARK_FAULT": "written:0"})
    assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
    assert (one.rows(), folder.names("commits")) == (100, [])
    code, said = here(one, "doctor")
    assert (code, "offsets/0: not committed, in the ledger" in said) == (0, True), said

    # the replay is a ledger hit and writes nothing; then it goes on
    ledger = one.sql("state.db", "SELECT * FROM hr_batch_ledger")
    one.start()
    until(lambda: "0" in folder.names("commits"), one)
    until(lambda: one.metrics().get("headrace_spark_ledger_hits") == 1, one)
    assert one.sql("state.db", "SELECT * FROM hr_batch_ledger") == ledger
    assert one.rows() == 100
    produce(one, documents(10, 10))
    until(lambda: one.rows() == 200, one)
    until(lambda: newest(folder, "commits") == newest(folder, "offsets"), one)
    assert one.terminate() == 0, one.log()[-4000:]
    assert not [name for name in folder.names("") if name.startswith(".")], "the probe left nothing"
    assert one.sql("state.db", "SELECT checkpoint FROM hr_query") == [(str(folder),)]

    # case 4: no query id
    folder.remove("metadata")
    code, why = refusal(one)
    assert (code, f"{folder}/metadata is missing" in why) == (3, True), why
    assert here(one, "doctor")[0] == 3
    query = one.sql("state.db", "SELECT query_id FROM hr_query")[0][0]
    code, said = command(one, "repair")
    assert (code, f"metadata names the query {query}\n" in said) == (0, True), said
    assert checkpoint.query_id(folder) == query

    # case 5: a cut entry, which was committed; one that was not may be removed
    last = f"offsets/{newest(folder, 'offsets')}"
    whole = folder.read(last)
    assert whole is not None
    folder.replace(last, whole[:-5])
    code, why = refusal(one)
    assert (code, f"{last} is cut" in why) == (3, True), why
    code, said = here(one, "doctor", "--remove-newest")
    assert (code, f"{last} was committed" in said) == (3, True), said
    folder.replace(last, whole)
    following = f"offsets/{newest(folder, 'offsets') + 1}"
    folder.begin(following).finish(b"")
    code, said = here(one, "doctor", "--remove-newest")
    assert (code, f"{following} removed" in said, folder.read(following)) == (0, True, None), said

    # case 6: another folder
    one.change(checkpoint=f"{server.url}/jobs/other")
    code, why = refusal(one)
    assert (code, "--new-checkpoint" in why) == (3, True), why

    # all is well: it goes on where it was, by spark-submit too, whose JVM is there before
    one.change(checkpoint=f"{server.url}//jobs/writer/", available_now=True)
    produce(one, documents(5, 20))
    assert submit(one) == 0, one.log()[-4000:]
    assert one.rows() == 250


def submit(one: Job) -> int:
    """The exit code of a start by spark-submit."""
    settings = [part for name, value in one.options.items() for part in ("--conf", f"{name}={value}")]
    with (one.folder / "log").open("ab") as log:
        return subprocess.run(
            [SUBMIT, "--master", "local[2,4]", *settings, ROOT / "deploy/spark/writer.py", "--config", one.config],
            stdout=log, stderr=log, cwd=one.folder, check=False, env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        ).returncode  # fmt: skip


def test_what_hdfs_refuses_is_told_in_a_line(job: Callable[..., Job], server: Hdfs, tmp_path: Path) -> None:
    one = job(checkpoint=f"{server.url}/closed/writer", spark=CLIENT)
    code, why = refusal(one, environment={"HADOOP_USER_NAME": "nobody"})
    assert (code, "Permission denied: user=nobody" in why, one.rows()) == (2, True, 0), why

    # nobody can know that a name is right where no job has written
    new = job(tmp_path / "new", checkpoint="hdfs://127.0.0.1:1/writer", spark=CLIENT)
    code, why = refusal(new)
    assert (code, "Connection refused" in why) == (2, True), why
    code, said = here(new, "doctor")
    assert (code, "Connection refused" in said, "Traceback" in said) == (2, True, False), said


def test_an_hdfs_that_goes_away_ends_the_job_and_a_supervisor_may_start_it_again(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    with hdfs(tmp_path) as own:
        one = job(tmp_path / "job", checkpoint=f"{own.url}/writer", spark=CLIENT)
        produce(one, documents(4))
        one.start()
        until(lambda: one.rows() == 40, one)
        own.stop()
        produce(one, documents(4, 4))
        assert one.wait() == 1, one.log()[-4000:]
    code, why = refusal(one)
    assert (code, f"{own.url}/writer cannot be reached: " in why) == (1, True), why
    code, said = command(one, "doctor")
    assert (code, "cannot be reached" in said, "Traceback" in said) == (1, True, False), said


@pytest.mark.soak
def test_of_two_drivers_on_one_checkpoint_on_hdfs_one_goes_on(
    job: Callable[..., Job], server: Hdfs, database: str, tmp_path: Path
) -> None:
    shared = {
        "path": "staged",
        "max": 100,
        "sink": database,
        "state_dsn": database,
        "checkpoint": f"{server.url}/both",
        "spark": CLIENT,
    }
    one, two = (job(tmp_path / name, **shared) for name in ("one", "two"))
    produce(one, documents(10))
    one.start()
    until(lambda: rows(database) == 100, one)
    two.start()
    until(lambda: '"event": "started"' in two.log() or two.ended(), two, dead=True)
    produce(one, documents(20, 10))
    until(lambda: one.ended() or two.ended(), one, dead=True)
    dead, alive = (one, two) if one.ended() else (two, one)
    assert dead.wait() == 1, dead.log()[-4000:]
    until(lambda: rows(database) == 300, alive)
    assert alive.terminate() == 0, alive.log()[-4000:]
    assert query(database, "SELECT value FROM hr_total WHERE name = 'inserted'") == [(300,)]


def rows(database: str) -> int:
    found = query(database, "SELECT count(*) FROM measurements")
    return int(found[0][0]) if found else 0
