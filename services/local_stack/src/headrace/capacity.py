"""`headrace capacity`: look at a shared capacity, change it, pause all its users, and find what an operation costs."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from headrace.calibration import calibrated
from headrace_capacity.stores import ClosableStore, open_store
from headrace_core.capacity.errors import CapacityConfig
from headrace_core.capacity.in_force import InForce
from headrace_core.capacity.protocol import Capacity, Handover, LeaseRequest, RampSetting, StoreStatus
from headrace_core.errors import HeadraceError

FAILED = 1
FORGETS = (
    "This store keeps it in memory (a Redis: unless it persists). Its restart does not undo it while a user of the"
    " resource runs; after an end of all of them, what they are configured with holds. Change that too."
)
app = typer.Typer(no_args_is_help=True, help="The capacity that many writers share.")
Resource = Annotated[str, typer.Argument(help="name of the resource")]
Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="HEADRACE_CAPACITY_STORE",
        help="tcp://host:port of a coordinator, postgresql://... or redis://...",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="HEADRACE_CAPACITY_TOKEN_FILE", help="file with the coordinator's token"),
]
out = Console(highlight=False)


@app.command()
def status(
    resource: Resource,
    store: Store,
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Show what is granted, used and waited for, in sum and per owner. Capacities are units per second."""
    opened = _opened(store, token_file)
    found = opened.status(resource)
    opened.close()
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        out.print(_summary(found), _owners(found))


@app.command(name="set")
def change(
    resource: Resource,
    store: Store,
    token_file: TokenFile = None,
    shared: Annotated[str | None, typer.Option(help="units per second; with dimensions a JSON object")] = None,
    reserved: Annotated[str | None, typer.Option(help="reserve of each instance, units per second")] = None,
    max_instances: Annotated[int | None, typer.Option(min=1, help="reserve slots")] = None,
    adaptive: Annotated[bool | None, typer.Option(help="follow the share of refused requests")] = None,
    ramp: Annotated[
        str | None, typer.Option(help="STEP/MS: an increase goes by STEP units/s each MS milliseconds")
    ] = None,
    handover: Annotated[
        Handover | None, typer.Option(help="a partition waits a second for its next owner, or takes the ledger along")
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait", min=0, help="seconds to wait until it is in force")] = 0,
) -> None:
    """Change a resource at run time. Exit code 1 if it is not in force within `--wait` seconds."""
    changes: dict[str, object] = {"max_instances": max_instances, "adaptive": adaptive}
    changes |= {"shared_capacity": _amount("--shared", shared), "reserved_capacity": _amount("--reserved", reserved)}
    changes |= {"ramp": _ramp(ramp), "handover": handover}
    given = {name: value for name, value in changes.items() if value is not None}
    if not given:
        raise typer.BadParameter("nothing to change was given")
    opened = _opened(store, token_file)
    version = opened.configure(resource, **given)
    in_force = InForce(opened, resource, version).wait(int(wait_s * 1000))
    opened.close()
    out.print(f"configuration {version} of {resource}" + (" is in force" if in_force else ", not yet in force"))
    if not opened.durable:
        out.print(FORGETS)
    if wait_s and not in_force:
        raise typer.Exit(FAILED)


@app.command()
def pause(
    resource: Resource,
    milliseconds: Annotated[int, typer.Argument(min=1, help="how long nothing is sent to the datastore")],
    store: Store,
    token_file: TokenFile = None,
) -> None:
    """Pause every writer of the resource. A pause that ends later stays; there is no way to shorten one."""
    opened = _opened(store, token_file)
    name = f"headrace-capacity:{os.getpid()}:{uuid.uuid4()}"
    reply = opened.sync(LeaseRequest(resource=resource, owner=name, seq=1, pause_ms=milliseconds), 5_000)
    opened.close()
    out.print(f"{resource} pauses for {reply.pause_ms} ms; its writers learn of it with their next call")


@app.command()
def calibrate(
    url: Annotated[str, typer.Option(help="postgresql://... of the datastore")],
    sql: Annotated[str, typer.Option(help="the operation: one statement")],
    capacity: Annotated[int, typer.Option(min=1, help="units per second of the resource")],
    target_ms: Annotated[float, typer.Option(min=0.001, help="latency to keep, in milliseconds")],
    percentile: Annotated[float, typer.Option(min=1, max=100, help="of the latency")] = 99,
    seconds: Annotated[float, typer.Option(min=0.5, help="of load at each cost")] = 5,
    connections: Annotated[int, typer.Option(min=1, max=200, help="to the datastore")] = 8,
    first: Annotated[int, typer.Option(min=1, help="cost to begin with")] = 1,
) -> None:
    """Find the lowest cost of an operation at which the datastore keeps a latency. It puts real load on it."""

    def tell(cost: int, rate: float, latency_ms: float) -> None:
        out.print(f"cost {cost:>6}  {rate:>10,.1f} operations/s  p{percentile:g} {latency_ms:>9,.2f} ms")

    found = calibrated(
        url,
        sql,
        capacity=capacity,
        target_ms=target_ms,
        part=percentile,
        seconds=seconds,
        connections=connections,
        first=first,
        tell=tell,
    )
    if found is None:
        raise HeadraceError(f"no cost keeps {target_ms:g} ms: not even one operation a second does")
    out.print(f"cost {found}: the lowest at which the latency holds")


def _opened(store: str, token_file: Path | None) -> ClosableStore:
    try:
        token = token_file.read_text(encoding="utf-8").strip() if token_file is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CapacityConfig("--token-file", f"cannot be read: {error}") from None
    if not token and store.startswith("tcp://"):
        raise CapacityConfig("--token-file", "a coordinator needs its token (or HEADRACE_CAPACITY_TOKEN_FILE)")
    return open_store(store, token=token, call_timeout_ms=5_000)


def _amount(option: str, text: str | None) -> Capacity | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=int | dict[str, int])
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{option} is an integer or a JSON object of integers: {error}") from error


def _ramp(text: str | None) -> RampSetting | None:
    if text is None:
        return None
    step, _, per_ms = text.partition("/")
    if not (step.isdecimal() and per_ms.isdecimal()):
        raise typer.BadParameter("--ramp is STEP/MS, such as 100/1000")
    return RampSetting(int(step), int(per_ms))


def _said(amount: Any) -> str:
    return str(amount) if isinstance(amount, int) else json.dumps(amount)


def _summary(found: StoreStatus) -> str:
    lines = [
        f"{found.resource}: shared {_said(found.shared_capacity)}, granted {_said(found.granted)}, "
        f"used {_said(found.used)} units/s, {found.waiting} partitions waited for",
        f"factor {found.factor / 1000:g}, configuration {found.config_version} (in force {found.in_force_version})",
    ]
    lines += [f"paused for {found.pause_ms} ms more"] if found.pause_ms else []
    lines += ["learning who holds what after a restart"] if found.learning else []
    return "\n".join(lines)


def _owners(found: StoreStatus) -> Table:
    table = Table("owner", "wants", "share", "holds", "granted", "used", "reserve")
    for each in found.owners:
        numbers = (each.want, each.share, each.partitions)
        table.add_row(
            each.owner, *map(str, numbers), _said(each.granted), _said(each.used), "yes" if each.reserve else "no"
        )
    return table
