"""The partitioner is that of the Java client."""

from __future__ import annotations

import pytest

from headrace_core.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "hash_"),
    [  # the examples of Apache Kafka's own UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(data: bytes, hash_: int) -> None:
    assert murmur2(data) == hash_ & 0xFFFFFFFF


def test_a_partition_is_the_positive_hash_modulo_their_number() -> None:
    assert partition_of(b"21", 16) == (-973932308 & 0x7FFFFFFF) % 16
