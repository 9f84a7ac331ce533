"""The peer: `KeyedCount.java` in Kafka Streams 4.4, compiled against the published jars, in the same rounds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.streams import traffic
from bench.streams.process import Measured
from bench.streams.rounds import Contestant, Ends
from bench.streams.stages import ENTITIES, routed_filler
from headrace.jars import KAFKA_VERSION, JarSet, folder
from headrace.java import java

SOURCE = Path(__file__).with_name("KeyedCount.java")
JARS = JarSet(
    "kafka-streams",
    KAFKA_VERSION,
    "kafka-streams-",
    f'<dependency org="org.apache.kafka" name="kafka-streams" rev="{KAFKA_VERSION}"/>'
    '<dependency org="org.slf4j" name="slf4j-nop" rev="1.7.36"/>',
)


class NoCompiler(RuntimeError):
    """A Java runtime without its compiler: the peer cannot be built."""


def compiler() -> str:
    """Path of `javac`, beside the Java that Kafka runs in or on the PATH. Raises NoCompiler, NoJava."""
    beside = Path(java()).resolve().with_name("javac")
    found = str(beside) if beside.is_file() else shutil.which("javac")
    if found is None:
        raise NoCompiler("only a Java runtime is installed, no compiler: Kafka Streams is not measured")
    return found


def build(into: Path) -> str:
    """Compile the peer; returns its class path."""
    into.mkdir(parents=True, exist_ok=True)
    jars = f"{folder(JARS)}/*"
    subprocess.run([compiler(), "-cp", jars, "-d", str(into), str(SOURCE)], check=True)
    return f"{into}:{jars}"


@contextmanager
def count(kafka: str, class_path: str, place: Path, messages: int) -> Iterator[Contestant]:
    """As `stages.registration`: one record in, one record on, one counter an entity."""
    numbers = iter(range(0, 10**12, messages))

    def fill() -> int:
        return traffic.prefill(kafka, "peer-count.in", traffic.telemetry(next(numbers), messages, ENTITIES))

    with _contestant(kafka, class_path, place, "count", fill) as one:
        yield one


@contextmanager
def batch(kafka: str, class_path: str, place: Path, messages: int) -> Iterator[Contestant]:
    """As `stages.batching`: records of a device into batches of one second."""
    with _contestant(kafka, class_path, place, "batch", routed_filler(kafka, "peer-batch.in", messages)) as one:
        yield one


@contextmanager
def _contestant(kafka: str, class_path: str, place: Path, mode: str, fill: Callable[[], int]) -> Iterator[Contestant]:
    name = f"peer-{mode}"
    traffic.create(kafka, [f"{name}.in", f"{name}.out"])
    place.mkdir(parents=True, exist_ok=True)
    ends = Ends(kafka, group=name)
    command = [java(), "-cp", class_path, "KeyedCount", kafka, name, str(place / "state")]
    process = Measured([*command, f"{name}.in", f"{name}.out", mode], place / "peer.log")
    one = Contestant(f"Kafka Streams {mode}", process, fill, lambda: ends.committed(f"{name}.in"))
    try:
        process.start()
        first = fill()
        process.until(lambda: one.progress() >= first, "the first round", 120, every_s=0.2)
        yield one
    finally:
        process.end()
