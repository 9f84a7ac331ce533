"""The replay audit sees what is lost, doubled with other bytes or altered, and nothing else (spark-writer.md 11)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_core.batching.config import BatchingConfig
from headrace_core.stage import Emission
from tests.support.routed import STEP_MS, batches, put, routed
from tests.support.spark_job import Job

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(900)]
BASE_MS = int(time.time() - 3600) * 1000
"""Retention takes what is older than a week."""
COUNT, FIRST, NEXT = 1200, 400, 1000
"""Records of a partition; the range by offsets of the first partition, and by the same times in the others."""
SETTINGS = {"window": 50, "timeout": 200, "dedup_horizon": 1000}
AUDIT = "import sys; from headrace_spark.jobs.audit import main; print([main(['--config', f]) for f in sys.argv[1:]])"


def at(offset: int) -> datetime:
    return datetime.fromtimestamp((BASE_MS + offset * STEP_MS) / 1000, UTC)


def altered(one: Emission, **changes: Any) -> Emission:
    document = {**json.loads(one.value or b""), **changes}
    return one._replace(value=json.dumps(document, separators=(",", ":")).encode())


def audited(one: Job) -> dict[str, int]:
    rows = one.sql("state.db", "SELECT equal, missing, extra, different FROM hr_audit ORDER BY started_at DESC LIMIT 1")
    return dict(zip(("equal", "missing", "extra", "different"), rows[0], strict=True))


def test_what_is_lost_doubled_or_altered_is_seen_and_nothing_else(
    job: Callable[..., Job], kafka: str, topic_prefix: str, tmp_path: Path
) -> None:
    topics = [f"{topic_prefix}{name}" for name in ("routed", "clean")]
    admin = AdminClient({"bootstrap.servers": kafka})
    for created in admin.create_topics([NewTopic(topic, 2, 1) for topic in topics]).values():
        created.result(240)
    config = BatchingConfig(**SETTINGS)
    logs = [list(routed(partition, COUNT, BASE_MS)) for partition in range(2)]
    made = [batches(log, config) for log in logs]
    inside = [
        [i for i, one in enumerate(out) if BASE_MS + (FIRST + 20) * STEP_MS < opened(one) < BASE_MS + 900 * STEP_MS]
        for out in made
    ]
    put(kafka, topics[0], [record for log in logs for record in log])
    put(kafka, topics[1], [*made[0], *made[1], *made[0][::7]], BASE_MS + COUNT * STEP_MS)

    lost, doubled, changed = inside[0][10], inside[1][20], inside[1][30]
    planted = [one for i, one in enumerate(made[0]) if i != lost]
    planted += [altered(one, closed_at=1) if i == changed else one for i, one in enumerate(made[1])]
    planted.append(altered(made[1][doubled], source="te/device/other//"))
    outside = [altered(made[0][0], id="0" * 32), altered(made[1][-1], id="1" * 32)]
    put(kafka, f"{topic_prefix}batches", [*planted, *outside, *made[1][::5]], BASE_MS + COUNT * STEP_MS)

    settings = {"from_time": at(FIRST), "to_time": at(NEXT)}
    one = job(tmp_path / "planted", audit=settings, **{"audit.batching": SETTINGS})
    by_offsets = {"batches": topics[1]}
    two = job(
        tmp_path / "clean",
        audit=by_offsets,
        **{
            "audit.batching": SETTINGS,
            "audit.from_offsets": {f"{topics[0]}-0": FIRST},
            "audit.to_offsets": {f"{topics[0]}-{number}": NEXT for number in range(2)},
        },
    )
    ran = subprocess.run(
        [sys.executable, "-c", AUDIT, str(one.config), str(two.config)], capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines()[-1:] == ["[1, 0]"], ran.stdout + ran.stderr[-4000:]
    found = audited(one)
    assert (found["missing"], found["extra"], found["different"]) == (1, 0, 2)
    names = {made[0][lost]: "missing", made[1][doubled]: "different", made[1][changed]: "different"}
    assert {(row[0], row[1]) for row in one.sql("state.db", "SELECT id, verdict FROM hr_audit_difference")} == {
        (json.loads(emission.value or b"")["id"], verdict) for emission, verdict in names.items()
    }
    sources = one.sql(
        "state.db", "SELECT source, missing, different FROM hr_audit_source WHERE missing + different > 0"
    )
    assert {row[0] for row in sources} == {emission.key.decode() for emission in names if emission.key}
    assert found["equal"] > 0.8 * sum(map(len, inside))
    clean = audited(two)
    assert clean["missing"] == clean["extra"] == clean["different"] == 0
    assert clean["equal"] > found["equal"]  # the second partition is judged from its first record on


def opened(one: Emission) -> int:
    return int(json.loads(one.value or b"")["opened_at"])
