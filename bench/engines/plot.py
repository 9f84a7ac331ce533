"""The curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def draw(curves: Mapping[str, Mapping[int, float]], path: Path) -> None:
    """Cost of a message by size, each relative to its own at the smallest size; the band is the demanded flatness."""
    figure, axes = plt.subplots(figsize=(7.5, 4.2), dpi=110)
    for name, costs in curves.items():
        lowest = costs[min(costs)]
        axes.plot(
            list(costs), [cost / lowest for cost in costs.values()], marker="o", label=f"{name} ({lowest:.1f} µs)"
        )
    axes.axhspan(0, 1.5, alpha=0.12, color="tab:green", label="demanded: at most 1.5")
    axes.set_xscale("log")
    axes.set_ylim(0, max(2.0, axes.get_ylim()[1]))
    axes.set_xlabel("entities, open batches, pending messages")
    axes.set_ylabel("CPU of a message, 1 = at the smallest size")
    axes.set_title("Cost of a message by the size of the state (in brackets: at the smallest size)", fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
