"""The restart cases of spark-writer.md 10 as black boxes: real broker, real PostgreSQL, and kill -9.

A start of Spark takes long, so the first test goes through several cases, one start after the other.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace_spark.jobs.checkpoint import main
from tests.support import postgres
from tests.support.compaction import compacted
from tests.support.spark_job import (
    PARTITIONS,
    Job,
    consume,
    documents,
    largest_window,
    produce,
    produce_in_transactions,
    query,
    until,
    written,
)
from tests.unit.spark.fakes import document, member

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(2400)]
CAPACITY = 4000


def staged(job: Callable[..., Job], database: str, folder: Path | None = None, /, **changes: Any) -> Job:
    settings: dict[str, Any] = {"capacity": CAPACITY, "max": 100, "path": "staged", **changes}
    return job(folder, sink=database, state_dsn=database, **settings)


def total(database: str, name: str) -> int:
    found = query(database, "SELECT value FROM hr_total WHERE name = %s", name)
    return int(found[0][0]) if found else 0


def rows(database: str) -> int:
    found = query(database, "SELECT count(*) FROM measurements")
    return int(found[0][0]) if found else 0


def left(database: str) -> int:
    return int(query(database, "SELECT count(*) FROM hr_stage_measurements")[0][0])


def spent(database: str) -> int:
    return int(query(database, "SELECT coalesce(sum(cost), 0) FROM hr_dispatch")[0][0])


def newest(one: Job, folder: str) -> int:
    return max(int(file.name) for file in (one.folder / "checkpoint" / folder).iterdir() if file.name.isdigit())


def uncommit(one: Job) -> int:
    """Delete the newest file of the commit log; returns its batch id."""
    number = newest(one, "commits")
    for name in (f"{number}", f".{number}.crc"):
        (one.folder / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    return number


def fault(*points: str) -> dict[str, str]:
    return {"HEADRACE_SPARK_FAULT": ",".join(points)}


@pytest.mark.parametrize("append", [False, True])
def test_the_staged_path_through_a_chain_of_deaths(
    job: Callable[..., Job], database: str, tmp_path: Path, append: bool
) -> None:
    # with `append` the table has no key that would hide a row that is written twice
    # case 10: gaps in the offsets, of the ends of transactions and of aborted ones
    one = staged(job, database, append=append)
    produce_in_transactions(one, documents(40))

    # case 2: the driver dies with staging filled
    one.start(environment=fault("staged:0"))
    assert one.wait() == -signal.SIGKILL, one.log()[-4000:]
    assert (rows(database), left(database)) == (0, 400)

    # cases 2 and 16: another number of cores replays it; the old staging goes away and every row is there once
    # case 12: the database crashes between staging and merge of the next micro-batch
    one.change(master="local[1,4]")
    one.start(environment=fault("stop:staged:1"))
    until(lambda: rows(database) == 400, one)
    assert left(database) == 0
    produce(one, documents(20, 40))
    until(one.stopped, one)
    assert left(database) > 0
    postgres.crash(database)
    assert left(database) == 0
    one.send(signal.SIGCONT)
    assert one.wait() == 1, one.log()[-4000:]
    assert "rows are staged, but the tasks reported" in one.log()
    assert rows(database) == 400

    # case 12: the replay succeeds; case 17: a document again, in one micro-batch and in a later one; case 14: SIGTERM
    one.change(master="local[2,4]")
    one.start()
    until(lambda: rows(database) == 600, one)
    twice = document(900, [member(1, 1.0)])
    produce(one, [twice, *documents(3), twice])
    until(lambda: total(database, "records") == 65, one)
    produce(one, [twice])
    until(lambda: total(database, "records") == 66, one)
    until(lambda: newest(one, "commits") == newest(one, "offsets"), one)  # Spark's commit log comes after the ledger
    assert one.terminate() == 0, one.log()[-4000:]
    assert (total(database, "documents"), total(database, "documents_repeated")) == (61, 5)
    assert (rows(database), total(database, "inserted"), left(database)) == (601, 601, 0)

    # case 1: the newest entry of the commit log is gone; a ledger hit writes nothing and uses no capacity
    before, ledger = spent(database), query(database, "SELECT * FROM hr_batch_ledger ORDER BY 2")
    number = uncommit(one)
    one.start()
    until(lambda: newest(one, "commits") == number, one)
    until(lambda: one.metrics().get("headrace_spark_ledger_hits") == 1, one)
    assert (spent(database), query(database, "SELECT * FROM hr_batch_ledger ORDER BY 2")) == (before, ledger)

    # case 13: a second driver on the same checkpoint; at most one goes on, and every row is there once
    two = staged(job, database, tmp_path / "second", checkpoint=one.settings["checkpoint"], append=append)
    two.start()
    until(lambda: '"event": "started"' in two.log() or two.ended(), two, dead=True)
    produce(one, documents(20, 60))
    until(lambda: one.ended() or two.ended(), one, dead=True)
    dead, alive = (one, two) if one.ended() else (two, one)
    assert dead.wait() == 1, dead.log()[-4000:]
    until(lambda: rows(database) == 801, alive)
    assert alive.terminate() == 0, alive.log()[-4000:]
    assert total(database, "inserted") == 801
    assert 0 < largest_window(one, database) <= CAPACITY
    assert total(database, "rows") == total(database, "inserted") + total(database, "repeats")
    assert written(one, "dead-letter") == 0


def delete_until(one: Job, partition: int, offset: int) -> None:
    """Remove records as retention does."""
    admin = AdminClient({"bootstrap.servers": one.kafka})
    place = TopicPartition(f"{one.prefix}batches", partition, offset)
    for future in admin.delete_records([place]).values():
        future.result(240)


def make_again(one: Job) -> None:
    """Delete the topic and make it again with as many records as it had."""
    admin, name = AdminClient({"bootstrap.servers": one.kafka}), f"{one.prefix}batches"
    for future in admin.delete_topics([name], operation_timeout=30).values():
        future.result(240)
    deadline = time.monotonic() + 600
    while name in admin.list_topics(timeout=240).topics and time.monotonic() < deadline:
        time.sleep(0.2)
    while time.monotonic() < deadline:
        try:
            for future in admin.create_topics([NewTopic(name, 4, 1)]).values():
                future.result(240)
            break
        except KafkaException as error:  # the old one is still on its way out
            if "exists" not in str(error) and "marked for deletion" not in str(error):
                raise
            time.sleep(0.2)
    produce(one, documents(80, 500), spread=4)


def test_what_must_not_be_started_is_refused(job: Callable[..., Job], database: str, tmp_path: Path) -> None:
    one = staged(job, database, available_now=True)
    produce(one, documents(10), spread=PARTITIONS)

    # case 10: gaps of a topic that the broker compacted, as long as several micro-batches
    names = [f"{one.prefix}{name}" for name in ("batches", "compacted")]
    gap = one.settings["capacity"] // 10
    assert compacted(one.kafka, names[1], documents(10, 300), gap) == [gap, *range(2 * gap + 1, 2 * gap + 10)]
    one.change(topics=names)
    assert one.run() == 0, one.log()[-4000:]
    assert (rows(database), total(database, "records"), total(database, "rejected")) == (200, 20, 0)
    assert newest(one, "commits") > 2
    with psycopg.connect(database) as db:
        db.execute("DELETE FROM measurements WHERE value >= 300")  # what follows counts those of the other topic

    # case 4: no query id; case 5: a cut entry, a hole; case 6: another folder
    checkpoint = one.folder / "checkpoint"
    (checkpoint / "metadata").unlink()
    assert one.run() == 3
    assert "headrace checkpoint repair" in one.log()
    assert main(["repair", "--config", str(one.config)]) == 0
    newest_offsets = checkpoint / "offsets" / str(newest(one, "offsets"))
    whole = newest_offsets.read_bytes()
    newest_offsets.write_bytes(whole[:-5])
    assert one.run() == 3
    assert "is cut" in one.log()
    assert main(["doctor", "--config", str(one.config), "--remove-newest"]) == 3, "it was committed"
    newest_offsets.write_bytes(whole)
    assert main(["doctor", "--config", str(one.config)]) == 0
    one.change(checkpoint=str(tmp_path / "other"))
    assert one.run() == 3
    assert "--new-checkpoint" in one.log()
    one.change(checkpoint=str(checkpoint))

    # case 8: retention took what was still needed; case 7: partitions were added while nobody ran
    produce(one, documents(10, 10), spread=PARTITIONS)
    delete_until(one, 0, 8)
    admin = AdminClient({"bootstrap.servers": one.kafka})
    for future in admin.create_partitions([NewPartitions(f"{one.prefix}batches", 4)]).values():
        future.result(240)
    until(
        lambda: len(admin.list_topics(f"{one.prefix}batches").topics[f"{one.prefix}batches"].partitions) == 4,
        one,
        dead=True,
    )
    produce(one, documents(8, 20), spread=4)
    assert one.run() == 4
    assert f"{one.prefix}batches, partition 0: offsets 5 to 7, 3 of them" in one.log()
    assert rows(database) == 100
    with psycopg.connect(database) as db:
        db.execute("ALTER TABLE measurements ADD CHECK (value < 1000)")
    guilty = document(700, [member(1, 1.0, "fine"), member(2, 5000.0, "guilty")])
    produce(one, [guilty])
    assert one.run("--accept-loss") == 0, one.log()[-4000:]
    assert rows(database) == 100 + (10 - 3) * 10 + 80 + 1
    [letter] = [json.loads(found.value()) for found in consume(one, "dead-letter", 1)]
    assert (letter["reason"], letter["element"], letter["payload"]) == ("sink_rejected", 1, guilty.decode())
    assert query(database, "SELECT topic, kafka_partition, first_offset, last_offset FROM hr_gap") == [
        (f"{one.prefix}batches", 0, 5, 7)
    ]
    assert total(database, "offsets_lost") == 3

    # case 9: another topic under the same name, with more records than the old one had
    make_again(one)
    assert one.run() == 4
    assert "another one than before" in one.log()
    assert rows(database) == 251
