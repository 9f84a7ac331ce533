"""`headrace demo`: the whole stack with this computer's telemetry, and the accounts of what became of it.

start -> nothing moves: first mark -> publish -> drain: second mark -> read the topics between the marks -> table

Two Spark jobs write into one datastore: one the measurements, the other an archive of them. They lease its capacity
from one coordinator, and the table shows the highest second over both. The second is started when the first has
written something: a start of Spark takes all of a small machine.

A second run over the same state is accounted for in the same way: all numbers are differences between the marks. A
service that dies ends the demo at once, with the end of its log.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace import evidence, publisher, settling, table
from headrace.accounting import account, latencies
from headrace.endpoints import Endpoints
from headrace.evidence import Mark, Unreachable
from headrace.progress import Progress, say, shown
from headrace.publisher import Client
from headrace.signals import Interrupted, interruptible
from headrace.stack import LocalStack
from headrace.table import Result
from headrace.windows import highest, used_share

QUIET_S = 60
BLAME_S = 3
PLAIN_WIDTH = 110
BATCHING = {"max_lateness": 60_000, "max_future_skew": 60_000}


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="how long to publish")] = 30,
    home: Annotated[Path, typer.Option(envvar="HEADRACE_HOME", help="folder of the stack's state")] = Path(".headrace"),
    capacity: Annotated[
        int, typer.Option(min=1, help="rows per second that the store may get, from both jobs together")
    ] = 200,
    rate: Annotated[float, typer.Option(min=1, help="messages per second, beside one burst")] = publisher.RATE,
    timeout_ms: Annotated[int, typer.Option(min=1, help="batching's timeout")] = 2000,
    trigger_ms: Annotated[int, typer.Option(min=1, help="the writer's trigger")] = 1000,
    drain: Annotated[float, typer.Option(min=1, help="seconds without progress after which draining is given up")] = 60,
    keep: Annotated[bool, typer.Option("--keep", help="stay up afterwards and print the URLs")] = False,
    json: Annotated[bool, typer.Option("--json", help="the result as one JSON document")] = False,
) -> None:
    """Publish this computer's telemetry through the whole stack and account for every message. Exit 0 only if the sum
    holds and no second was above the capacity."""
    stack = LocalStack(
        home, capacity_per_s=capacity, timeout_ms=timeout_ms, trigger_ms=trigger_ms, batching=BATCHING, archive=True
    )
    result = None
    try:
        with interruptible(), stack:
            at = stack.start(lambda name, words: say(f"{name:8} {words}"))
            result = measure(stack, at, seconds, rate, drain)
            _print(result, json)
            if keep:
                _stay(stack, at)
    except Interrupted as told:
        if result is None:
            say(f"headrace demo: stopped by {told}")
            raise typer.Exit(128 + told.number) from told
    raise typer.Exit(0 if result is not None and result.good else 1)


def measure(stack: LocalStack, at: Endpoints, seconds: float, rate: float, drain_s: float) -> Result:
    """One run over a stack that is up. Raises ServiceDied, Unreachable, NoBroker."""
    try:
        return _measure(stack, at, seconds, rate, drain_s)
    except Unreachable:
        _blame(stack)
        raise


def _measure(stack: LocalStack, at: Endpoints, seconds: float, rate: float, drain_s: float) -> Result:
    if evidence.stored(at.database).rows:
        stack.start_archive()  # it may be behind
    if moving := settling.settle(at, QUIET_S, turn=stack.check):
        raise Unreachable(f"not quiet after {QUIET_S} s: {'; '.join(moving)}")
    before = evidence.mark(at)
    client = Client(at.mqtt_host, at.mqtt_port, at.mqtt_protocol).connect()
    try:
        with shown(at, before) as progress:
            moving = _run(stack, at, before, client, progress, seconds, rate, drain_s)
            progress.phase = "accounting"
            after = evidence.mark(at)
            found = evidence.read(at, before.ends, after.ends)
    finally:
        client.close()
    spent = evidence.dispatches(at.database, before.dispatch)
    return Result(
        account(before, after, found, client.messages, client.sent - client.acknowledged),
        latencies(found, client.published_ms, at.timeout_ms),
        at.timeout_ms,
        highest(spent),
        at.capacity_per_s,
        used_share(spent, at.capacity_per_s),
        moving,
    )


def _run(
    stack: LocalStack, at: Endpoints, before: Mark, client: Client, progress: Progress,
    seconds: float, rate: float, drain_s: float,
) -> list[str]:  # fmt: skip
    """Publish and drain; returns what still moves."""

    def turn() -> None:
        stack.check()
        if progress.rows:
            stack.start_archive()
        progress.published = client.acknowledged
        progress.turn()

    publisher.run(client, seconds, rate=rate, turn=turn)
    progress.phase = "draining"
    client.wait(turn=turn)
    stack.start_archive()
    stack.await_archive(turn)
    counted = before.gauges.get("registration", {}).get("in", 0)
    return settling.settle(at, drain_s, at_least=counted + client.acknowledged, turn=turn)


def _blame(stack: LocalStack) -> None:
    """What does not answer may have died: then say that."""
    until = time.monotonic() + BLAME_S
    while time.monotonic() < until:
        stack.check()
        time.sleep(0.1)


def _print(result: Result, json: bool) -> None:
    if json:
        sys.stdout.write(table.as_json(result).decode() + "\n")
        sys.stdout.flush()
        return
    terminal = sys.stdout.isatty()
    table.show(result, Console(no_color=not terminal, width=None if terminal else PLAIN_WIDTH))


def _stay(stack: LocalStack, at: Endpoints) -> None:
    """Until told to stop. Raises ServiceDied."""
    for name, url in (("status", at.api_url), ("bridge", at.bridge_url), ("streams", at.streams_url)):
        say(f"{name:8} {url}")
    say(f"{'writer':8} {at.spark_url}/metrics, the second job at {at.archive_url}/metrics")
    say(f"{'capacity':8} {at.capacity_command}")
    say(f"{'mqtt':8} {at.mqtt_host}:{at.mqtt_port}, kafka {at.kafka}, rows {at.database}")
    say("Ctrl-C stops everything")
    while True:
        stack.check()
        time.sleep(0.5)
