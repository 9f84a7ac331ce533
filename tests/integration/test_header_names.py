"""A header name that is not UTF-8, written by another client: a real Kafka takes it, and it stops nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.odd_headers import NAME, produce
from tests.support.streams_worker import StreamsWorker, read_all, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


def test_it_is_a_dead_letter_and_its_neighbours_go_on(kafka: str, topic_prefix: str, tmp_path: Path) -> None:
    worker = StreamsWorker(kafka, topic_prefix, tmp_path / "data", tmp_path / "log", stages="registration,batching")
    try:
        worker.at_once().start().wait_ready()
        good = [("topic", b"te/device/main///m/t"), ("qos", b"1"), ("retain", b"0")]
        message = b'{"v": 1}'
        odd = [*good, (NAME, b"1")]
        asyncio.run(produce(kafka, topic_prefix + "raw", 0, [(b"te", message, h) for h in (good, odd, good)]))
        asyncio.run(produce(kafka, topic_prefix + "routed", 1, [(b"te", message, odd)]))
        until(lambda: worker.metric('headrace_stage{name="unreadable"') == 1, f"it is counted, see {worker.log}")
        until(lambda: worker.metric('headrace_stage{name="not_measurement",partition="1"') == 1, "in batching, too")
        until(lambda: worker.metric('headrace_stage{name="in",partition="0",stage="registration"') == 2, "others")
        worker.kill()
        worker.start().wait_ready()
        assert worker.metric('headrace_stage{name="unreadable"') == 1
        assert worker.terminate() == 0
    finally:
        worker.end()
    letters = [json.loads(one.value) for one in read_all(kafka, topic_prefix + "dead-letter")]
    (letter,) = [one for one in letters if one["detail"] == "the name of a header is not UTF-8"]
    assert letter["payload"] == message.decode()
