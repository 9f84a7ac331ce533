"""`python -m bench engines|capacity|streams|bridge|spark [--json] [--quick] [--plot FILE]`: figures of the engines, of
a shared capacity, of the stream processor on a real Kafka, of the MQTT bridge, of the Spark writer.

With `--json` the last line is one JSON object with all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from bench.engines import batching, capacity, curves, packing, registration
from bench.engines.measure import Figure
from bench.spark import PARTS as SPARK_PARTS

PLOT = Path("docs/bench/engines.png")
CAPACITY_PLOT = Path("docs/bench/capacity.png")
SPARK_PLOT = Path("docs/bench/spark.png")
FLAT = "flat"
STREAMS_PARTS = ("latency", "size")


def parts() -> Mapping[str, Callable[..., list[Figure]]]:
    """What is measured, by name; the timeline where it is there."""
    found: dict[str, Callable[..., list[Figure]]] = {
        "batching": batching.figures,
        "registration": registration.figures,
        "packing": packing.figures,
        "capacity": capacity.figures,
    }
    if find_spec("headrace_core.timeline.engine") is not None:
        from bench.engines import timeline

        found["timeline"] = timeline.figures
    return found


def line(figure: Figure) -> str:
    """A figure for people."""
    mark = {True: "met", False: "MISSED", None: ""}[figure.met]
    value = f"{figure.value:>12,.0f}" if figure.value >= 1000 else f"{figure.value:>12.2f}"
    target = "" if figure.target is None else f"(target {'>=' if figure.least else '<='} {figure.target:,g})"
    floor = "" if not figure.floor else f"  {figure.value / figure.floor:.2f} x floor"
    return f"{figure.name:<72}{value} {figure.unit:<17} {target:<22} {mark}{floor}"


def engines(*, as_json: bool, quick: bool, plot: Path | None, only: list[str]) -> int:
    """Measure, print, draw. Returns the exit code, which says nothing about targets: those are in the figures."""
    started, found = time.monotonic(), list[Figure]()
    for name, part in parts().items():
        if not only or name in only:
            found += _shown(part(quick=quick))
    if not only or FLAT in only:
        flat, costs = curves.figures(quick=quick)
        found += _shown(flat)
        if plot is not None:
            from bench.engines.plot import draw

            draw(costs, plot)
            print(f"curves: {plot}")
    _explain(found)
    if as_json:
        print(json.dumps(document(found, quick=quick, seconds=time.monotonic() - started)))
    return 0


def bridge(*, as_json: bool, quick: bool) -> int:
    """Measure the bridge between real brokers, print. Returns the exit code, which says nothing about targets."""
    from bench.bridge import run

    started = time.monotonic()
    found = _shown(run.figures(quick=quick))
    _explain(found)
    if as_json:
        seconds = time.monotonic() - started
        clock = "CPU time of the process, all threads"
        print(json.dumps(document(found, quick=quick, seconds=seconds) | {"bench": "bridge", "clock": clock}))
    return 0


def spark(*, as_json: bool, quick: bool, plot: Path | None, only: list[str]) -> int:
    """As `engines`, with the writer as a process between real servers; wall time."""
    from bench.spark import figures

    started, found = time.monotonic(), list[Figure]()
    for figure in figures.figures(quick=quick, only=only):
        found += _shown([figure])
    if plot is not None:
        from bench.spark.plot import picture

        found += _shown(picture(plot))
        print(f"picture: {plot}")
    if as_json:
        whole = document(found, quick=quick, seconds=time.monotonic() - started)
        print(json.dumps(whole | {"bench": "spark", "clock": "wall time"}))
    return 0


def _explain(figures: list[Figure]) -> None:
    for figure in figures:
        if figure.profile:
            print(f"\nwhere the time goes: {figure.name}")
            print("\n".join(f"  {share:6.1%}  {name}" for name, share in figure.profile))


def _shown(figures: list[Figure]) -> list[Figure]:
    for figure in figures:
        print(line(figure), flush=True)
    return figures


def capacity_figures(*, as_json: bool, quick: bool, plot: Path | None) -> int:
    """As `engines`; wall time, as it is about waiting."""
    from bench.capacity import figures
    from bench.capacity import plot as pictures

    started = time.monotonic()
    found = _shown(figures.figures(quick=quick))
    if plot is not None:
        found += _shown(pictures.picture(plot))
        print(f"picture: {plot}")
    if as_json:
        whole = document(found, quick=quick, seconds=time.monotonic() - started)
        print(json.dumps(whole | {"bench": "capacity", "clock": "wall time (time.monotonic)"}))
    return 0


def document(figures: list[Figure], *, quick: bool, seconds: float) -> dict[str, object]:
    """All figures as one object."""
    return {
        "bench": "engines",
        "quick": quick,
        "clock": "CPU time (time.process_time), best of several runs",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "seconds": round(seconds, 1),
        "figures": {figure.name: figure.document() for figure in figures},
        "missed": [figure.name for figure in figures if figure.met is False],
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", choices=["engines", "capacity", "streams", "bridge", "spark"])
    parser.add_argument("--json", action="store_true", help="print all figures as one JSON object in the last line")
    parser.add_argument("--quick", action="store_true", help="a minute: fewer messages, sizes up to 10,000, no picture")
    parser.add_argument("--plot", type=Path, help=f"where the picture goes (default {PLOT}, {CAPACITY_PLOT})")
    names = [*parts(), FLAT, *STREAMS_PARTS, *SPARK_PARTS]
    parser.add_argument("--only", action="append", choices=names, default=[], help="measure this part only; repeatable")
    chosen = parser.parse_args()
    if chosen.what == "capacity":
        picture = chosen.plot or (None if chosen.quick else CAPACITY_PLOT)
        return capacity_figures(as_json=chosen.json, quick=chosen.quick, plot=picture)
    if chosen.what == "streams":
        from bench.streams.run import streams

        return streams(as_json=chosen.json, quick=chosen.quick, only=chosen.only)
    if chosen.what == "bridge":
        return bridge(as_json=chosen.json, quick=chosen.quick)
    if chosen.what == "spark":
        picture = chosen.plot or (None if chosen.quick or chosen.only else SPARK_PLOT)
        return spark(as_json=chosen.json, quick=chosen.quick, plot=picture, only=chosen.only)
    plot = chosen.plot or (None if chosen.quick else PLOT)
    return engines(as_json=chosen.json, quick=chosen.quick, plot=plot, only=chosen.only)


if __name__ == "__main__":
    raise SystemExit(main())
