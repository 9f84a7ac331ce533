"""What this computer can say about itself, by psutil: a list of readings, each with numbers and booleans only.

What a machine does not have (temperatures in a container, swap, a battery) is not in the list; nothing is made up. The
lists are bounded, so a machine with a hundred disks publishes no more than the capacity of a demo can take.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import psutil

MOST_OF_A_KIND = 4
UNREADABLE = (OSError, RuntimeError, AttributeError, NotImplementedError, TypeError, psutil.Error)
Values = Mapping[str, float | bool]

MAIN = "device/main//"
CPU = "device/cpu//"
MEMORY = "device/memory//"
NETWORK = "device/network//"
DISKS = "device/disks//"


@dataclass(frozen=True)
class Reading:
    """Values of one type, read at one moment of one entity (its topic id)."""

    entity: str
    type: str
    values: Values


def read() -> list[Reading]:
    """All readings of this moment. Rates are since the call before; the first call's are since boot or zero."""
    found = []
    for source in (_processor, _memory, _disks, _network, _temperatures, _battery):
        with contextlib.suppress(*UNREADABLE):
            for reading in source():
                found.append(reading)  # noqa: PERF402 - what came before an error counts
    finite = ((reading, {n: v for n, v in reading.values.items() if math.isfinite(v)}) for reading in found)
    return [replace(reading, values=values) for reading, values in finite if values]


def stored(readings: Sequence[Reading]) -> list[Reading]:
    """What a recorder keeps while it is offline: the processor, the memory and the network of `readings`."""
    kept = {(CPU, "usage"), (CPU, "cores"), (MEMORY, "memory"), (NETWORK, "total")}
    return [reading for reading in readings if (reading.entity, reading.type) in kept]


def own_process() -> Reading:
    """What the publishing process itself uses."""
    process = psutil.Process()
    used = process.cpu_times()
    values = {
        "cpu_user_s": used.user,
        "cpu_system_s": used.system,
        "rss_bytes": process.memory_info().rss,
        "threads": process.num_threads(),
    }
    return Reading("", "process", values)


def facts() -> dict[str, str]:
    """Text about the machine, for twin data."""
    return {"os": platform.system(), "release": platform.release(), "architecture": platform.machine()}


def _processor() -> Iterator[Reading]:
    with contextlib.suppress(*UNREADABLE):
        one, five, fifteen = os.getloadavg()
        yield Reading(MAIN, "load", {"one": one, "five": five, "fifteen": fifteen})
    times = psutil.cpu_times_percent()
    shares = {name: getattr(times, name) for name in ("user", "system", "idle")}
    yield Reading(CPU, "usage", shares)
    cores = psutil.cpu_percent(percpu=True)[: 2 * MOST_OF_A_KIND]
    yield Reading(CPU, "cores", {f"core{number}": share for number, share in enumerate(cores)})
    stats = psutil.cpu_stats()
    yield Reading(CPU, "switches", {"context": stats.ctx_switches, "interrupts": stats.interrupts})


def _memory() -> Iterator[Reading]:
    memory = psutil.virtual_memory()
    low = memory.available < memory.total // 10
    yield Reading(MEMORY, "memory", {"used": memory.used, "available": memory.available, "low": low})
    with contextlib.suppress(*UNREADABLE):
        swap = psutil.swap_memory()
        if swap.total:
            yield Reading(MEMORY, "swap", {"used": swap.used, "percent": swap.percent})


def _disks() -> Iterator[Reading]:
    with contextlib.suppress(*UNREADABLE):
        usage = psutil.disk_usage("/")
        values = {"used": usage.used, "free": usage.free, "percent": usage.percent}
        yield Reading(DISKS, "root", values)
        counters = psutil.disk_io_counters(perdisk=True) or {}
        used = [(name, disk) for name, disk in counters.items() if disk.read_bytes + disk.write_bytes]
        busy = sorted(used, key=lambda item: (-item[1].write_bytes - item[1].read_bytes, item[0]))
        for name, disk in busy[:MOST_OF_A_KIND]:
            yield Reading(
                f"device/disks/service/{safe(name)}",
                "io",
                {"read_bytes": disk.read_bytes, "write_bytes": disk.write_bytes},
            )


def _network() -> Iterator[Reading]:
    with contextlib.suppress(*UNREADABLE):
        total = psutil.net_io_counters()
        yield Reading(NETWORK, "total", {"sent": total.bytes_sent, "received": total.bytes_recv})
        cards = sorted(psutil.net_io_counters(pernic=True).items(), key=lambda item: (-item[1].bytes_recv, item[0]))
        for name, card in cards[:MOST_OF_A_KIND]:
            values = {"sent": card.bytes_sent, "received": card.bytes_recv, "dropped": card.dropin + card.dropout}
            yield Reading(f"device/network/service/{safe(name)}", "traffic", values)


def _temperatures() -> Iterator[Reading]:
    with contextlib.suppress(*UNREADABLE):
        for chip, sensors in sorted(psutil.sensors_temperatures().items())[:MOST_OF_A_KIND]:
            values = {safe(s.label or f"sensor{place}"): s.current for place, s in enumerate(sensors[:MOST_OF_A_KIND])}
            yield Reading(f"device/{safe(chip)}//", "temperature", values)


def _battery() -> Iterator[Reading]:
    with contextlib.suppress(*UNREADABLE):
        battery = psutil.sensors_battery()
        if battery is not None:
            values = {"percent": battery.percent, "plugged": bool(battery.power_plugged)}
            yield Reading("device/battery//", "charge", values)


def safe(name: str) -> str:
    """A name as one topic segment."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "unnamed"
