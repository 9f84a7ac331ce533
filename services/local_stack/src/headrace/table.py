"""The result of a demo: as one table for people, as one JSON document for machines. No colour without a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.accounting import Account
from headrace.windows import BUSY_S, percentile


@dataclass(frozen=True)
class Result:
    """What a demo found. `latencies_ms` as in `accounting.latencies`; `highest` is the highest cost of all jobs in a
    window of 1 s, `used` the share of the capacity as in `windows.used_share`; `moving` says what had not drained."""

    account: Account
    latencies_ms: Sequence[int]
    timeout_ms: int
    highest: int
    capacity: int
    used: float
    moving: Sequence[str] = ()

    @property
    def good(self) -> bool:
        """The sum and every identity hold, all is drained, no window is above the capacity."""
        return self.account.holds and self.highest <= self.capacity and not self.moving


def as_json(result: Result) -> bytes:
    """One document; latencies in ms, costs in units of the writer's cost function."""
    account = result.account
    document: dict[str, Any] = {
        name: value for name, value in asdict(account).items() if name not in ("lines", "into", "out")
    }
    document |= {
        "good": result.good,
        "sum": {
            "in": account.into,
            "out": account.out,
            "dead_letters": account.dead,
            "discarded": sum(account.discarded.values()),
            "pending": account.pending,
            "holds": account.sum.holds,
        },
        "identities": [{**asdict(line), "holds": line.holds} for line in account.lines],
        "latency_ms": {
            "p50": percentile(result.latencies_ms, 0.5),
            "p99": percentile(result.latencies_ms, 0.99),
            "batches": len(result.latencies_ms),
            "beyond_timeout_ms": result.timeout_ms,
        },
        "window": {
            "highest": result.highest,
            "capacity": result.capacity,
            "holds": result.highest <= result.capacity,
            "used_share": round(result.used, 3),
            "jobs": jobs(account),
        },
        "not_drained": list(result.moving),
    }
    return msgspec.json.encode(document)


def show(result: Result, console: Console) -> None:
    """Print the table, the sum, and each identity that does not hold."""
    table = Table(title="headrace demo", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for name, number, words in _rows(result):
        table.add_row(name, number, words)
    console.print(table)
    account = result.account
    begin = f" + {account.pending_before} pending before" if account.pending_before else ""
    discarded = sum(account.discarded.values())
    console.print(
        _verdict(account.sum.holds),
        f"in = out + dead letters + discarded + pending: {account.into - account.pending_before}{begin} = "
        f"{account.out} + {account.dead} + {discarded} + {account.pending}",
        highlight=False,
        soft_wrap=True,
    )
    kept = [line for line in account.lines if line.holds]
    everything = len(kept) == len(account.lines)
    console.print(
        _verdict(everything), f"{len(kept)} of {len(account.lines)} identities between the stages hold", highlight=False
    )
    for line in account.lines:
        if not line.holds:
            console.print("   ", f"{line.name}: {line.left} is not {line.right}", highlight=False, soft_wrap=True)
    console.print(
        _verdict(result.highest <= result.capacity),
        f"no second above the capacity, over {_jobs(account)}: at most {result.highest} of {result.capacity}",
        highlight=False,
    )
    for words in result.moving:
        console.print(_verdict(False), f"not drained: {words}", highlight=False, soft_wrap=True)


def _rows(result: Result) -> list[tuple[str, str, str]]:
    account = result.account
    more = {"sent back by the broker": account.echoes, "delivered again": account.again, "of others": account.foreign}
    archived = [] if account.archived is None else [
        ("rows archived", str(account.archived), "by the job archive, within the same capacity"),
    ]  # fmt: skip
    p50, p99 = (percentile(result.latencies_ms, part) for part in (0.5, 0.99))
    return [
        ("published", str(account.published), "acknowledged by the MQTT broker"),
        ("in raw", str(account.raw), _listed(more) or "nothing but that"),
        ("routed", str(account.routed), f"{account.replayed} of them early data, replayed"),
        ("batches", str(account.batches), "closed by event time"),
        ("members", str(account.members), "measurements in them"),
        ("rows stored", str(account.stored), f"of {account.rows} values, by the job writer"),
        *archived,
        ("dead letters", str(account.dead), _listed(account.dead_letters)),
        ("discarded", str(sum(account.discarded.values())), _listed(account.discarded)),
        ("still pending", str(account.pending), "wait for a registration that never comes"),
        ("repeats recognised", str(sum(account.repeats.values())), _listed(account.repeats)),
        (
            "latency p50, p99",
            f"{_ms(p50)}, {_ms(p99)}",
            f"publish to batch, beyond its timeout of {result.timeout_ms} ms",
        ),
        ("highest in 1 s", str(result.highest), f"of the {result.capacity} units that {_jobs(account)} may spend"),
        ("used", f"{result.used:.0%}", f"of the capacity, in the busiest {BUSY_S} s"),
    ]


def jobs(account: Account) -> int:
    """How many Spark jobs wrote."""
    return 1 if account.archived is None else 2


def _jobs(account: Account) -> str:
    return "one job" if account.archived is None else "both jobs together"


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in numbers.items() if number)


def _ms(value: int | None) -> str:
    return "-" if value is None else f"{value} ms"


def _verdict(good: bool) -> Text:
    return Text("ok  ", style="green") if good else Text("FAIL", style="bold red")
