"""The demo as a user runs it: everything real, the accounts hold, a second run too, and a dead service ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.stack import Files, recorded

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1200)]
LIMIT_S = 500


def start(home: Path, *options: str) -> subprocess.Popen[str]:
    """`headrace demo` in the background; stderr goes to a file beside the home."""
    command = [sys.executable, "-m", "headrace", "demo", "--json", "--home", str(home), *options]
    with home.with_suffix(".err").open("w") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)


def said(home: Path) -> str:
    return home.with_suffix(".err").read_text()


def until_said(home: Path, words: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while words not in said(home):
        assert process.poll() is None, said(home)
        assert time.monotonic() < deadline, said(home)
        time.sleep(0.1)


def gone(home: Path) -> bool:
    """Whether no process has the home in its command line."""
    return not [
        p for p in psutil.process_iter(["cmdline"]) if any(str(home) in word for word in p.info["cmdline"] or ())
    ]


def check(document: dict[str, Any]) -> None:
    total = document["sum"]
    assert total["holds"], document
    assert total["in"] == total["out"] + total["dead_letters"] + total["discarded"] + total["pending"]
    assert [line for line in document["identities"] if not line["holds"]] == []
    assert document["good"] is True
    assert document["unacknowledged"] == 0
    assert document["raw"] == document["published"] + document["echoes"] + document["again"] + document["foreign"]
    assert (document["again"], document["foreign"]) == (0, 0)
    assert document["dead_letters"] == {
        "future": 1, "id_in_use": 1, "invalid": 1, "late": 1, "unknown_channel": 1, "unregistered_signal": 1,
    }  # fmt: skip
    assert document["discarded"]["clear_of_unknown"] == 1
    assert document["discarded"]["duplicate"] > 0
    assert document["replayed"] > 0
    assert document["stored"] > document["members"] > document["published"] // 2
    assert document["pending"] == document["pending_before"] + 3
    window = document["window"]
    assert 0 < window["highest"] <= window["capacity"] == 200
    assert window["jobs"] == 2
    assert 0 < window["used_share"] <= 1
    assert document["archived"] == document["stored"], "the second job has written the same once more"
    assert document["latency_ms"]["batches"] > document["batches"] // 2
    assert -500 < document["latency_ms"]["p50"] <= document["latency_ms"]["p99"]


def test_every_message_is_accounted_for_and_again_over_the_same_state(tmp_path: Path):
    """The second run stays up, so that the doctor can look at it: its accounts go back to the first record."""
    home = tmp_path / "home"
    first = start(home, "--seconds", "8")
    out, _ = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0, out + said(home)
    assert "\x1b" not in out + said(home)
    check(json.loads(out))
    assert json.loads(out)["echoes"] == 0, "the bridge speaks MQTT 5, where nothing that it publishes comes back"
    assert gone(home)

    second = start(home, "--seconds", "3", "--keep")
    try:
        assert second.stdout is not None
        document = json.loads(second.stdout.readline())
        check(document)
        assert document["pending_before"] == 3
        until_said(home, "Ctrl-C stops everything", second)
        looked = subprocess.run(
            [sys.executable, "-m", "headrace", "doctor", "--json", "--home", str(home)],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        findings = {(one["group"], one["name"]): one for one in json.loads(looked.stdout)}
        assert looked.returncode == 0, looked.stdout + looked.stderr
        assert findings["accounts", "sum"]["good"] is True, findings
        assert findings["ports", "archive"]["good"] is True, findings
        assert findings["capacity", "datastore"]["good"] is True, findings
        assert findings["topics", "raw"]["words"] == "4 partitions, delete, LogAppendTime"
    finally:
        second.send_signal(signal.SIGTERM)
        second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0, said(home)
    assert gone(home)


def test_a_writer_that_dies_ends_the_demo_with_the_end_of_its_log(tmp_path: Path):
    home = tmp_path / "home"
    process = start(home, "--seconds", str(10 * LIMIT_S))
    until_said(home, "s publishing:", process)
    pid = next(known.pid for known in recorded(Files(home)) if known.name == "spark")
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert out == ""
    assert "spark was ended by SIGKILL; the end of its log:" in said(home)
    told = said(home).partition("the end of its log:")[2].split()
    assert told
    assert "".join(told[-20:]) in "".join((Files(home).logs / "spark.log").read_text().split())
    assert gone(home)
