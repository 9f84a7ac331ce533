"""Faust and aiokafka are what `faust_internals.py` was written against; whoever raises a version reads these again.

A hash is that of the source of what is overridden, wrapped, or calls what is overridden. If one differs, compare the
two versions, decide whether the override (its reason is in the module's docstring) still holds, run
`tests/integration/test_runner.py`, `test_stalls.py` and `test_instance.py`, and only then write the new hash down.
"""

from __future__ import annotations

import hashlib
import inspect
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest
from faust.transport.consumer import Consumer

from headrace_streams import faust_internals
from headrace_streams.faust_internals import ChunkConsumer, ChunkRecords, ChunkSchema, ChunkThread

CONSUMER, DRIVER = "faust.transport.consumer", "faust.transport.drivers.aiokafka"
COORDINATOR, FETCHER = "aiokafka.consumer.group_coordinator", "aiokafka.consumer.fetcher"

SOURCES = {
    # overridden
    (CONSUMER, "Consumer.getmany"): "4b168d84882a70d6",
    (CONSUMER, "Consumer._add_gap"): "4df2573ded7c1c2c",
    (CONSUMER, "Consumer._new_offset"): "1d2c7ea89a7ad4f1",
    (CONSUMER, "Consumer.perform_seek"): "0e8c130ff4b0afd8",
    (DRIVER, "Consumer._new_consumer_thread"): "0870ec53dea75083",
    (DRIVER, "AIOKafkaConsumerThread._create_worker_consumer"): "c2701bfc3e6f6cad",
    (DRIVER, "AIOKafkaConsumerThread.on_start"): "38b4e8bd1e10723a",
    (DRIVER, "AIOKafkaConsumerThread.on_thread_stop"): "8dfc004e258b6c25",
    ("faust.serializers.schemas", "Schema.compile"): "d46eec5ce3195b2c",
    (FETCHER, "PartitionRecords._consumer_record"): "e668541600b047ab",
    (FETCHER, "PartitionRecords.__iter__"): "b411eeeaeb7c31dc",
    # wrapped
    (COORDINATOR, "GroupCoordinator._do_heartbeat"): "dc1d6632aaa68e96",
    (COORDINATOR, "GroupCoordinator._do_rejoin_group"): "3cb016c98a087a71",
    # call them, or are relied on
    (FETCHER, "PartitionRecords._unpack_records"): "b803e6d46480732c",
    (FETCHER, "FetchResult.getall"): "3e717e30de5068d5",
    (CONSUMER, "Consumer._drain_messages"): "44a2500309e83c63",
    (CONSUMER, "Consumer.ack"): "5fcf41cf45153475",
    (CONSUMER, "Consumer._commit_tps"): "a20e230b05ae8b15",
    (CONSUMER, "Consumer._commit_offsets"): "1a69799041188441",
    (CONSUMER, "Consumer.on_partitions_revoked"): "d04b7ae72c6fc206",
    (CONSUMER, "Consumer.on_partitions_assigned"): "29ce96596f05a18c",
    ("faust.app.base", "App._on_partitions_revoked"): "d5c895bbe57dc73a",
    ("faust.app.base", "App._on_partitions_assigned"): "de932b7927db85b3",
    (CONSUMER, "ThreadDelegateConsumer._getmany"): "f9d47aa9010b5ff2",
    (DRIVER, "AIOKafkaConsumerThread.getmany"): "26fc5fc9f3b667e1",
    (DRIVER, "AIOKafkaConsumerThread.seek_wait"): "12e8d34e554e9024",
    ("faust.streams", "Stream.noack"): "921a6f5c674d32d4",
    ("faust.streams", "Stream.events"): "c62f4dd3a73fe7aa",
}


def find(module: str, name: str) -> Any:
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def digest(found: Any) -> str:
    return hashlib.sha256(inspect.getsource(found).encode()).hexdigest()[:16]


def test_the_versions_are_those_that_were_read() -> None:
    assert (version("faust-streaming"), version("aiokafka")) == ("0.15.3", "0.14.0")


@pytest.mark.parametrize(("module", "name"), SOURCES)
def test_the_source_is_the_one_that_was_read(module: str, name: str) -> None:
    assert digest(find(module, name)) == SOURCES[module, name], (
        f"{module}.{name} has changed: see this file's docstring"
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ChunkConsumer, (CONSUMER, "Consumer")),
        (ChunkConsumer, (CONSUMER, "ThreadDelegateConsumer")),
        (ChunkThread, (DRIVER, "AIOKafkaConsumerThread")),
        (ChunkSchema, ("faust.serializers.schemas", "Schema")),
        (ChunkRecords, (FETCHER, "PartitionRecords")),
    ],
)
def test_what_is_overridden_takes_the_same_arguments(ours: type, theirs: tuple[str, str]) -> None:
    base = find(*theirs)
    both = [name for name in vars(ours) if name in vars(base) and inspect.isfunction(vars(base)[name])]
    for name in both:
        if name not in ("__init__", "_add_gap", "_consumer_record", "compile"):  # these take anything
            mine = list(inspect.signature(vars(ours)[name]).parameters)
            assert mine == list(inspect.signature(vars(base)[name]).parameters), name


def test_every_override_is_guarded() -> None:
    guarded = {name for _, name in SOURCES}
    for ours in (ChunkConsumer, ChunkThread, ChunkSchema, ChunkRecords):
        for name in vars(ours):
            for base in ours.__mro__[1:]:
                known = name in vars(base) and name not in ("__init__", "__doc__", "__module__", "__abstractmethods__")
                if known and inspect.isfunction(vars(base)[name]):
                    assert f"{base.__name__}.{name}" in guarded
                    break


def test_every_override_is_explained() -> None:
    explained = faust_internals.__doc__ or ""
    for _, name in list(SOURCES)[:11]:
        assert name.rsplit(".", 1)[1] in explained, name


@pytest.mark.parametrize(
    "name",
    [
        "_unacked_messages", "_acked", "_acked_index", "_active_partitions", "_paused_partitions",
        "_buffered_partitions", "_read_offset", "flow_active", "can_resume_flow",
    ],
)  # fmt: skip
def test_the_attributes_that_are_used_are_made_by_the_consumer(name: str) -> None:
    assert name in inspect.getsource(Consumer), name


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("aiokafka.consumer.consumer", "_fetch_max_wait_ms"),
        ("aiokafka.consumer.consumer", "self._coordinator ="),
        ("aiokafka.consumer.consumer", "self._fetcher ="),
        (FETCHER, "self._records ="),
        (FETCHER, "records = MemoryRecords(part_data[-1])"),
        (FETCHER, "backoff=self._prefetch_backoff"),
        (FETCHER, "return self._backoff - lifetime"),
        (FETCHER, "self._records_iterator = self._unpack_records()"),
        (COORDINATOR, "self._group_instance_id ="),
        ("aiokafka.consumer.subscription_state", "_tp_state"),
    ],
)
def test_what_is_used_of_aiokafka_is_there(module: str, text: str) -> None:
    assert text in inspect.getsource(import_module(module))
