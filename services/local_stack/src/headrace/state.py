"""`headrace state`: what a stage knows, read from its changelog, and whether the worker's databases say the same.

`dump` reads the changelog topic by its record format (`headrace_core.changelog`) and decodes keys and values by their
description (`headrace_schemas.state`). `verify` needs the engine and RocksDB, which are the stream processor's: it runs
`python -m headrace_streams verify` and tells what that says.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from confluent_kafka import KafkaException, TopicPartition

from headrace import evidence
from headrace.endpoints import Endpoints
from headrace.evidence import Unreachable
from headrace.stack import Files
from headrace_core.changelog import MARKER_KEY, Delta, Marker, source_of
from headrace_core.errors import HeadraceError
from headrace_schemas.state import Item, decode

ANSWER_S = 10
NOT_COMPARED = 2
SHOWN_BYTES = 300

app = typer.Typer(no_args_is_help=True, help="Look into the durable state of a stage.")
Stage = Annotated[str, typer.Argument(help="registration, batching, timeline.NAME")]
Partition = Annotated[int | None, typer.Option(min=0, help="this partition only")]
Kafka = Annotated[str | None, typer.Option(help="bootstrap servers; default: those of the stack in the folder")]
Prefix = Annotated[str, typer.Option(help="of topic names, with --kafka")]
Home = Annotated[Path, typer.Option("--home", envvar="HEADRACE_HOME", help="folder of the stack's state")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON lines")]
HOME = Path(".headrace")


class Log(NamedTuple):
    """Where changelogs are."""

    kafka: str
    prefix: str


@app.command()
def dump(
    stage: Stage,
    partition: Partition = None,
    as_json: AsJson = False,
    kafka: Kafka = None,
    prefix: Prefix = "headrace.",
    home: Home = HOME,
) -> None:
    """Print a stage's state as its changelog says it: the newest value of each key, decoded, in key order."""
    for number, delta in read(_log(kafka, prefix, home), stage, partition):
        for line in _json_lines(stage, number, delta) if as_json else _plain_lines(stage, number, delta):
            sys.stdout.write(line + "\n")


@app.command()
def verify(
    stage: Stage,
    partition: Partition = None,
    as_json: AsJson = False,
    kafka: Kafka = None,
    prefix: Prefix = "headrace.",
    data_dir: Annotated[Path | None, typer.Option(help="of the stream processor; default: the stack's")] = None,
    home: Home = HOME,
) -> None:
    """Compare a worker's databases with the changelog, derived keys too; the worker may run. Exit 1 if keys differ, 2
    if it could not be compared."""
    log = _log(kafka, prefix, home)
    ran = _verify(log, stage, partition, data_dir or Files(home.absolute()).home / "streams")
    for line in ran.stdout.splitlines():
        sys.stdout.write((line if as_json else "\n".join(_told(stage, json.loads(line)))) + "\n")
    if ran.returncode not in (0, 1):
        sys.stderr.write(f"headrace: not compared: {_reason(ran.stderr)}\n")
        raise typer.Exit(NOT_COMPARED)
    raise typer.Exit(ran.returncode)


def read(log: Log, stage: str, partition: int | None) -> Iterator[tuple[int, Delta]]:
    """The state by partition. Raises Unreachable, and HeadraceError if there is no such changelog."""
    topic = f"{log.prefix}{stage}.changelog"
    for number, (first, end) in _bounds(log.kafka, topic, partition).items():
        delta = Delta({}, Marker())
        for record in evidence.records(log.kafka, topic, {number: (first, end)}):
            delta.add(record.key(), record.value(), source_of(record.headers() or ()))
        yield number, delta


def _bounds(kafka: str, topic: str, partition: int | None) -> dict[int, tuple[int, int]]:
    with closing(evidence.reader(kafka)) as consumer:
        try:
            known = consumer.list_topics(timeout=ANSWER_S).topics
            numbers = sorted(known[topic].partitions) if topic in known else []
            wanted = [number for number in numbers if partition in (None, number)]
            places = {n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=ANSWER_S) for n in wanted}
        except KafkaException as error:
            raise Unreachable(f"Kafka at {kafka}: {error}") from error
    if not places:
        raise HeadraceError(f"there is no {topic}" + ("" if partition is None else f", partition {partition}"))
    return places


def items(stage: str, delta: Delta) -> Iterator[tuple[Item, int]]:
    """Each key that has a value, decoded, with the source offset that it comes from; in key order."""
    for key in sorted(delta.items):
        source, value = delta.items[key]
        if value is not None:
            yield decode(stage, key, value), source


def _json_lines(stage: str, partition: int, delta: Delta) -> Iterator[str]:
    for item, source in items(stage, delta):
        document: dict[str, Any] = {"partition": partition, "family": item.family, "key": item.key, "value": item.value}
        if item.problem:
            document["problem"] = item.problem
        yield json.dumps(document | {"source": source})
    yield json.dumps({"partition": partition, "marker": msgspec.to_builtins(delta.marker)})


def _plain_lines(stage: str, partition: int, delta: Delta) -> Iterator[str]:
    marker = delta.marker
    there = sum(value is not None for _, value in delta.items.values())
    clock = datetime.fromtimestamp(marker.clock / 1000, UTC).isoformat(timespec="milliseconds")
    at = f"applied up to offset {marker.source}, clock {clock}" if marker.source >= 0 else "nothing applied yet"
    yield f"partition {partition}: {there} keys, {at}"
    for item, _ in items(stage, delta):
        yield f"  {_named(item, 10)}  {json.dumps(item.value, ensure_ascii=False)}"


def _named(item: Item, width: int = 0) -> str:
    parts = item.key.values() if isinstance(item.key, dict) else [item.key]
    words = " ".join(part if isinstance(part, str) else json.dumps(part) for part in parts)
    problem = f" ({item.problem})" if item.problem else ""
    return f"{item.family:<{width}} {words}{problem}"


def _log(kafka: str | None, prefix: str, home: Path) -> Log:
    if kafka is not None:
        return Log(kafka, prefix)
    files = Files(home.absolute())
    try:
        at = Endpoints.load(files.endpoints)
    except (OSError, msgspec.MsgspecError) as error:
        raise HeadraceError(f"no stack is up in {files.home}: --kafka says where its Kafka is") from error
    return Log(at.kafka, at.prefix)


def _verify(log: Log, stage: str, partition: int | None, data_dir: Path) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("headrace_streams") is None:
        raise HeadraceError("the stream processor (headrace-streams) is not installed here")
    command = [sys.executable, "-m", "headrace_streams", "verify", stage]
    if partition is not None:
        command += ["--partition", str(partition)]
    values = {"KAFKA": log.kafka, "PREFIX": log.prefix, "DATA_DIR": str(data_dir)}
    env = (
        {"HEADRACE_STREAMS_STAGES": stage}
        | _of_timeline(stage)
        | os.environ
        | {f"HEADRACE_STREAMS_{k}": v for k, v in values.items()}
    )
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def _of_timeline(stage: str) -> dict[str, str]:
    """Settings by which there is such a timeline; which ones it has changes nothing in how its keys are derived."""
    first, name, *source = [*stage.split("."), ""]
    if first != "timeline" or not name:
        return {}
    buffer = {"source": "source", "target": "target", "delay_ms": 0}
    settings = {"buffer": buffer} if source[0] == "in" else {}
    return {"HEADRACE_STREAMS_TIMELINES": json.dumps({name: settings})}


def _told(stage: str, line: dict[str, Any]) -> Iterator[str]:
    """One line of the stream processor, for people."""
    partition = line["partition"]
    if "damaged" in line:
        yield f"partition {partition}: DAMAGED: {line['damaged']}"
    elif "key" in line:
        key = base64.b64decode(line["key"])
        kind = "derived key" if line["derived"] else "key"
        yield f"partition {partition}: {kind} differs: {_key(stage, key, line)}"
        for name in ("changelog", "database"):
            yield f"  {name:<10} {_value(stage, key, line, name)}"
    else:
        verdict = "equal" if not line["differing"] else f"{line['differing']} keys DIFFER"
        undecided = f", {line['undecided']} undecided (compacted since)" if line["undecided"] else ""
        yield (
            f"partition {partition}: {verdict}: {line['keys']} keys and {line['derived']} derived ones, up to offset "
            f"{line['source']}, {line['behind']} records of the changelog behind{undecided}"
        )


def _key(stage: str, key: bytes, line: dict[str, Any]) -> str:
    if line["derived"]:
        return repr(key)
    if key == MARKER_KEY:
        return "marker"
    value = line["changelog"] or line["database"]
    return _named(decode(stage, key, base64.b64decode(value)))


def _value(stage: str, key: bytes, line: dict[str, Any], name: str) -> str:
    if line[name] is None:
        return "is not there"
    raw = base64.b64decode(line[name])
    if line["derived"] or key == MARKER_KEY:
        return repr(raw)[:SHOWN_BYTES]
    item = decode(stage, key, raw)
    words = json.dumps(item.value, ensure_ascii=False)[:SHOWN_BYTES]
    return f"{words} ({item.problem})" if item.problem else words


def _reason(log: str) -> str:
    """The error in the last line of a JSON log, or that line."""
    last = log.strip().rpartition("\n")[2]
    try:
        return str(json.loads(last)["error"])
    except (ValueError, KeyError, TypeError):
        return last or "no reason was given"
