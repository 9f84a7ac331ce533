"""The supervisor starts the writer again where that can help, and passes SIGTERM to the driver's own process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace_spark import exits
from headrace_spark.jobs.supervise import Backoff, Supervisor, again
from headrace_spark.metrics import RESTARTS

COUNT = "import pathlib,sys; f=pathlib.Path(sys.argv[1]); n=len(f.read_text()) if f.exists() else 0; "
"""How many runs there were before this one, each of which left a letter."""


def test_it_starts_again_for_failures_and_a_sink_that_is_down_and_for_no_other_code() -> None:
    codes = {code for code in range(256) if again(code)}
    assert {exits.FAILURE, exits.SINK_DOWN} == {code for code in codes if code <= 128}
    assert codes >= {128 + signal.SIGKILL, 128 + signal.SIGTERM}
    assert again(-signal.SIGKILL)


def test_pauses_double_up_to_a_bound_and_begin_anew_after_a_long_run() -> None:
    backoff = Backoff(5, 60)
    assert [backoff.after(1) for _ in range(6)] == [5, 10, 20, 40, 60, 60]
    assert backoff.after(61) == 5
    assert backoff.after(1) == 10


@pytest.mark.parametrize(("codes", "runs"), [([1, 6, 0], 3), ([1, 3, 0], 2), ([5, 0], 1), ([0], 1)])
def test_it_ends_with_the_first_code_that_it_does_not_answer(codes: list[int], runs: int, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    script = COUNT + f"f.write_text('x' * (n + 1)); sys.exit({codes}[n])"
    found = Supervisor([sys.executable, "-c", script, str(file)], tmp_path / "pid", Backoff(0.01, 0.02)).run()
    assert (found, len(file.read_text())) == (codes[runs - 1], runs)


def test_the_writer_is_told_how_often_it_was_started_before(tmp_path: Path) -> None:
    """For the gauge `headrace_spark_restarts`."""
    file = tmp_path / "told"
    script = f"import os, sys; f = open(sys.argv[1], 'a'); f.write(os.environ['{RESTARTS}']); sys.exit(f.tell() < 3)"
    assert Supervisor([sys.executable, "-c", script, str(file)], tmp_path / "pid", Backoff(0.01, 0.02)).run() == 0
    assert file.read_text() == "012"


def test_a_killed_writer_is_started_again(tmp_path: Path) -> None:
    file = tmp_path / "runs"
    script = COUNT + "import os; f.write_text('x' * (n + 1)); n or os.kill(os.getpid(), 9)"
    assert Supervisor([sys.executable, "-c", script, str(file)], tmp_path / "pid", Backoff(0.01, 0.02)).run() == 0
    assert len(file.read_text()) == 2


@pytest.mark.parametrize("code", [0, 1, 3, 6])
def test_once_ends_with_the_first_code_whatever_it_is(code: int, tmp_path: Path) -> None:
    file = tmp_path / "runs"
    script = COUNT + f"f.write_text('x' * (n + 1)); sys.exit({code})"
    command = [sys.executable, "-c", script, str(file)]
    assert Supervisor(command, tmp_path / "pid", Backoff(0.01, 0.02), once=True).run() == code
    assert len(file.read_text()) == 1


def test_once_told_to_stop_before_it_began_says_so(tmp_path: Path) -> None:
    supervisor = Supervisor(["false"], tmp_path / "pid", Backoff(0.01, 0.02), once=True)
    supervisor.stop.set()
    assert supervisor.run() == 128 + signal.SIGTERM


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--once"], 128 + signal.SIGTERM)])
def test_sigterm_goes_to_the_process_that_told_its_pid_and_not_to_its_parent(
    options: list[str], code: int, tmp_path: Path
) -> None:
    """The command is a shell that stands for spark-submit: it would die of SIGTERM with 143. With `--once` a Job of
    Kubernetes, which takes 0 for done for ever, is told that the writer was stopped."""
    writer = tmp_path / "writer.py"
    writer.write_text(
        "import signal, sys, time\n"
        "from headrace_spark.jobs.supervise import tell_pid\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "tell_pid()\n"
        "open(sys.argv[1], 'w').close()\n"
        "while True: time.sleep(0.1)\n"
    )
    ready = tmp_path / "ready"
    shell = f'{sys.executable} {writer} {ready}; code=$?; echo "the writer ended with $code"; exit $code'
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace_spark.jobs.supervise", *options, "--", "sh", "-c", shell],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _until(ready.exists)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == code
    assert "the writer ended with 0" in out


def test_sigterm_before_the_writer_began_ends_all(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace_spark.jobs.supervise", "--", "sh", "-c", f"touch {ready}; sleep 600"]
    )
    try:
        _until(ready.exists)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 128 + signal.SIGTERM
    finally:
        process.kill()
    _until(lambda: not any(child.is_running() for child in children))


def test_sigterm_between_two_starts_ends_at_once(tmp_path: Path) -> None:
    supervisor = Supervisor(["false"], tmp_path / "pid", Backoff(0.01, 0.02))
    supervisor.stop.set()
    assert supervisor.run() == 0


def test_a_command_that_is_not_there_is_a_matter_of_configuration(capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "headrace_spark.jobs.supervise", "--", "/no/such/spark-submit"]
    assert subprocess.run(command, check=False).returncode == exits.CONFIGURATION
    assert "/no/such/spark-submit" in capfd.readouterr().err


def _until(holds: object) -> None:
    deadline = time.monotonic() + 120
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
