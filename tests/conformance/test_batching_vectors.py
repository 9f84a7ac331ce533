"""Every vector of batching.json, each as a test of its own; once more with the derived keys rebuilt at each restart."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headrace_core.batching.config import BatchingConfig
from headrace_core.batching.engine import Batcher, derive
from headrace_core.batching.keys import PRIMARY
from headrace_core.batching.messages import Batch, Message
from headrace_core.state import MemoryState

FOLDER = Path(os.environ.get("HEADRACE_VECTORS", "tests/vectors"))
VECTORS = json.loads((FOLDER / "batching.json").read_text("utf-8"))["vectors"] if FOLDER.exists() else []


def restored(state: MemoryState) -> MemoryState:
    """What a changelog gives back: primary families, and the rest derived from them."""
    fresh = MemoryState({key: value for key, value in state.snapshot().items() if key[0] in PRIMARY})
    for key, value in list(fresh.snapshot().items()):
        derive(fresh, key, value)
    assert fresh.snapshot() == state.snapshot()
    return fresh


def run(vector: dict[str, Any], always_restore: bool) -> dict[str, Any]:
    config, state = BatchingConfig(**vector["config"]), MemoryState()
    batches: list[Batch] = []
    rejected: list[dict[str, Any]] = []
    highest = 0
    for index, step in enumerate(vector["steps"]):
        if step["do"] == "restart" or always_restore:
            state = restored(state)
        if step["do"] == "restart":
            continue
        batcher, receipt = Batcher(state, config), step["receipt_time"]
        highest = max(highest, receipt)
        if step["do"] == "tick":
            outputs = batcher.tick(receipt)
        elif step["do"] == "flush":
            outputs = batcher.flush(receipt)
        elif step.get("invalid"):
            outputs = batcher.unreadable(receipt)
        else:
            message = Message(step["source"], step["type"], step["event_time"], step["label"].encode())
            outputs = batcher.message(message, receipt)
        for output in outputs:
            if isinstance(output, Batch):
                batches.append(output)
            else:
                rejected.append({"step": index, "label": step["label"], "reason": str(output.reason)})
    last = Batcher(state, config).tick(highest + config.timeout)
    batches += [output for output in last if isinstance(output, Batch)]
    return {"batches": [as_expected(batch) for batch in batches], "rejected": rejected}


def as_expected(batch: Batch) -> dict[str, Any]:
    return {
        "source": batch.source,
        "members": [member.value.decode() for member in batch.members],
        "from": batch.from_ms,
        "opened_at": batch.opened_ms,
        "closed_at": batch.closed_ms,
        "close": str(batch.close),
        "id": batch.id,
    }


@pytest.mark.parametrize("always_restore", [False, True], ids=["live", "restored"])
@pytest.mark.parametrize("vector", VECTORS, ids=[vector["id"] for vector in VECTORS])
def test_batching_vectors(vector: dict[str, Any], always_restore: bool) -> None:
    assert run(vector, always_restore) == vector["expected"]
