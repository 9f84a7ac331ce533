"""The command line. Each command is a function here, or registered by its own module: `register(app)`.

Exit codes: 0 done, 1 an error (one line says which), 2 wrong usage, 3 a stack runs already, 4 none runs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace import capacity as capacity_commands
from headrace import spark_commands, state
from headrace.demo import demo
from headrace.doctor import doctor
from headrace.endpoints import Endpoints
from headrace.publisher import publish
from headrace.services import answers, listens
from headrace.signals import Interrupted, interruptible
from headrace.stack import AlreadyRunning, Files, Known, LocalStack, holder, recorded
from headrace.supervisor import ServiceDied, end_strays, wait_for
from headrace_core.errors import HeadraceError

FAILED, RUNS_ALREADY, RUNS_NOT = 1, 3, 4
DOWN_S = 60.0
UP_S = 300.0
CHECK_S = 0.2
TAIL_BYTES = 3000

app = typer.Typer(no_args_is_help=True, add_completion=False, help="headrace: device data, kept and paced.")
Home = Annotated[Path, typer.Option("--home", envvar="HEADRACE_HOME", help="folder of the stack's state")]
HOME = Path(".headrace")
out = Console(highlight=False)
err = Console(stderr=True, highlight=False, soft_wrap=True)


@app.command()
def up(
    home: Home = HOME,
    detach: Annotated[bool, typer.Option("--detach", help="go on in the background once all is ready")] = False,
    capacity: Annotated[int, typer.Option(min=1, help="rows per second into the store, from all jobs together")] = 200,
    timeout_ms: Annotated[int, typer.Option(min=1, help="when batching closes a batch")] = 1000,
    trigger_ms: Annotated[int, typer.Option(min=1, help="how often Spark looks for batches")] = 1000,
    without: Annotated[list[str] | None, typer.Option(help="leave this service out")] = None,
    archive: Annotated[bool, typer.Option("--archive", help="a second job, within the same capacity")] = False,
) -> None:
    """Start the local stack and keep it running until Ctrl-C."""
    if detach:
        _detach(home, capacity, timeout_ms, trigger_ms, without or [], archive=archive)
        return
    stack = LocalStack(
        home, capacity_per_s=capacity, timeout_ms=timeout_ms, trigger_ms=trigger_ms, without=tuple(without or ()),
        archive=archive,
    )  # fmt: skip
    with interruptible(), stack:
        started = time.monotonic()
        endpoints = stack.start(_say)
        stack.start_archive(_say)
        _say("headrace", f"ready after {time.monotonic() - started:.1f} s; Ctrl-C stops it")
        _print_addresses(endpoints)
        while True:
            stack.check()
            time.sleep(CHECK_S)


@app.command()
def down(home: Home = HOME) -> None:
    """Stop the stack that runs in the folder; returns when it is gone."""
    files = Files(home.absolute())
    pid = holder(files)
    if not pid:
        _say("headrace", f"no stack runs in {files.home}")
        return
    os.kill(pid, signal.SIGTERM)
    if not wait_for(lambda: holder(files) is None, DOWN_S):
        raise HeadraceError(f"process {pid} did not stop within {DOWN_S:.0f} s")
    _say("headrace", "stopped")


@app.command()
def status(home: Home = HOME, as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False) -> None:
    """Show each service: pid, readiness, address. Exit code 4 if no stack runs, 1 if a service is not ready."""
    files = Files(home.absolute())
    pid = holder(files)
    rows = [(known, _is_ready(known)) for known in recorded(files)] if pid is not None else []
    if as_json:
        print(json.dumps(_status_document(files, pid, rows), indent=2))
    else:
        out.print(_status_table(rows) if rows else f"no stack runs in {files.home}")
    if pid is None:
        raise typer.Exit(RUNS_NOT)
    if not all(ready for _, ready in rows):
        raise typer.Exit(FAILED)


@app.command()
def reset(home: Home = HOME) -> None:
    """Remove the folder with all state. Refused while a stack runs in it."""
    files = Files(home.absolute())
    pid = holder(files)
    if pid is not None:
        raise AlreadyRunning(files.home, pid)
    if not files.home.exists():
        _say("headrace", f"{files.home} is not there")
        return
    if not files.lock.exists():
        raise HeadraceError(f"{files.home} is not a folder of headrace: it has no lock file; nothing was removed")
    end_strays((known.pid, known.began) for known in recorded(files))
    shutil.rmtree(files.home)
    _say("headrace", f"{files.home} removed")


app.command()(demo)
app.command()(publish)
app.command()(doctor)
app.add_typer(state.app, name="state")
app.add_typer(capacity_commands.app, name="capacity")
spark_commands.register(app)


def main() -> None:
    """The command `headrace`."""
    try:
        app()
    except Interrupted as told:
        sys.exit(0 if told.number == signal.SIGTERM else 128 + told.number)
    except AlreadyRunning as error:
        _complain(error)
        sys.exit(RUNS_ALREADY)
    except ServiceDied as error:
        _complain(error)
        sys.exit(FAILED)
    except (HeadraceError, OSError) as error:
        _complain(error)
        sys.exit(FAILED)


def _detach(home: Path, capacity: int, timeout_ms: int, trigger_ms: int, without: list[str], *, archive: bool) -> None:
    files = Files(home.absolute())
    if (pid := holder(files)) is not None:
        raise AlreadyRunning(files.home, pid)
    files.logs.mkdir(parents=True, exist_ok=True)
    files.endpoints.unlink(missing_ok=True)
    log = files.logs / "headrace.log"
    command = [sys.executable, "-m", "headrace", "up", "--home", str(files.home), "--capacity", str(capacity)]
    command += ["--timeout-ms", str(timeout_ms), "--trigger-ms", str(trigger_ms)]
    command += [f"--without={name}" for name in without] + ["--archive"] * archive
    with log.open("wb") as file:
        background = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        with interruptible():
            wait_for(lambda: files.endpoints.exists() or background.poll() is not None, UP_S)
    except Interrupted:
        background.send_signal(signal.SIGTERM)
        background.wait(DOWN_S)
        raise
    if background.poll() is not None:
        err.print(log.read_text(errors="replace")[-TAIL_BYTES:].strip(), markup=False)
        raise typer.Exit(background.returncode or FAILED)
    _print_addresses(Endpoints.load(files.endpoints))
    _say("headrace", f"runs in the background as process {background.pid}; `headrace down` stops it")


def _is_ready(known: Known) -> bool:
    if known.address.startswith("http"):
        return answers(f"{known.address}/readyz")
    return listens(int(known.address.rpartition(":")[2]))


def _status_document(files: Files, pid: int | None, rows: list[tuple[Known, bool]]) -> dict[str, object]:
    services = [
        {"name": known.name, "pid": known.pid, "ready": ready, "address": known.address, "log": known.log}
        for known, ready in rows
    ]
    return {"home": str(files.home), "running": pid is not None, "pid": pid, "services": services}


def _status_table(rows: list[tuple[Known, bool]]) -> Table:
    table = Table("service", "pid", "ready", "address", "log")
    for known, ready in rows:
        table.add_row(known.name, str(known.pid), "yes" if ready else "no", known.address, known.log)
    return table


def _print_addresses(endpoints: Endpoints) -> None:
    addresses = {
        "MQTT": f"mqtt://{endpoints.mqtt_host}:{endpoints.mqtt_port}  (MQTT {endpoints.mqtt_protocol})",
        "Kafka": f"{endpoints.kafka}  (topics {endpoints.prefix}*)",
        "API": endpoints.api_url,
        "bridge": f"{endpoints.bridge_url}/metrics",
        "streams": f"{endpoints.streams_url}/metrics",
        "Spark": f"{endpoints.spark_url}/metrics",
        "database": str(endpoints.database),
        "capacity": endpoints.capacity_command,
        "logs": str(endpoints.logs),
    }
    for name, address in addresses.items():
        out.print(f"  {name:<9} {address}", markup=False, soft_wrap=True)


def _say(name: str, text: str) -> None:
    out.print(f"{name:<9} {text}", markup=False, soft_wrap=True)


def _complain(error: Exception) -> None:
    err.print(f"headrace: {error}", markup=False)
