"""`headrace doctor`: is everything there, does it listen, are the topics as they must be, is anything behind, do the
accounts add up from the first record on?

A finding is good, bad, or only told. What moves at the moment cannot be accounted for: then that is told, not judged.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import confluent_kafka
import msgspec
import typer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace import evidence, settling, topics
from headrace.accounting import account
from headrace.endpoints import Endpoints
from headrace.evidence import Mark, Offsets
from headrace.jars import CONNECTOR, KAFKA, cache_dir
from headrace.java import java
from headrace.mqtt import mosquitto
from headrace.services import PARTITIONS, answers, listens
from headrace.stack import Files
from headrace_capacity.stores import open_store
from headrace_core.capacity.errors import UnknownResource
from headrace_core.capacity.protocol import by_dimension
from headrace_core.errors import HeadraceError

PACKAGES = ("headrace", "confluent-kafka", "faust-streaming", "pyspark", "paho-mqtt")
PLAIN_WIDTH = 120
ANSWER_S = 10


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `good` None: told, not judged."""

    group: str
    name: str
    words: str
    good: bool | None = True


def doctor(
    home: Annotated[Path, typer.Option(envvar="HEADRACE_HOME", help="folder of the stack's state")] = Path(".headrace"),
    json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Look at versions and, if a stack runs, at ports, topics, lag and accounts. Exit 1 if something is wrong."""
    findings = list(examine(home))
    if json:
        sys.stdout.write(msgspec.json.encode([asdict(finding) for finding in findings]).decode() + "\n")
    else:
        terminal = sys.stdout.isatty()
        show(findings, Console(no_color=not terminal, width=None if terminal else PLAIN_WIDTH))
    raise typer.Exit(1 if any(finding.good is False for finding in findings) else 0)


def examine(home: Path) -> Iterator[Finding]:
    """All findings; what cannot be asked is a bad one."""
    yield from versions()
    files = Files(home.absolute())
    if not files.endpoints.exists():
        yield Finding("stack", "running", f"no stack is up in {files.home}", None)
        return
    try:
        at = Endpoints.load(files.endpoints)
    except (OSError, msgspec.MsgspecError) as error:
        yield Finding("stack", "running", f"{files.endpoints} cannot be read: {error}", False)
        return
    for group, ask in (("ports", ports), ("topics", kept), ("capacity", leased), ("lag", lag), ("accounts", accounts)):
        try:
            yield from ask(at)
        except (HeadraceError, OSError, confluent_kafka.KafkaException) as error:
            yield Finding(group, "answer", str(error), False)


def versions() -> Iterator[Finding]:
    """Of what the stack is made of."""
    yield Finding("versions", "Python", platform.python_version(), (3, 11) <= sys.version_info[:2] < (3, 14))
    for package in PACKAGES:
        try:
            yield Finding("versions", package, version(package))
        except PackageNotFoundError:
            yield Finding("versions", package, "not installed", False)
    yield Finding("versions", "librdkafka", confluent_kafka.libversion()[0])
    yield _found("Java", _java)
    yield from _jars()
    broker = mosquitto()
    yield Finding(
        "versions", "mosquitto", _first_line(broker, "-h") if broker else "not installed: amqtt, MQTT 3.1.1", None
    )


def ports(at: Endpoints) -> Iterator[Finding]:
    """Does each service listen, and say that it is ready?"""
    for name, port in (("kafka", int(at.kafka.rpartition(":")[2])), ("mqtt", at.mqtt_port)):
        up = listens(port)
        yield Finding("ports", name, f"{port} {'listens' if up else 'does not listen'}", up)
    for name in ("bridge", "streams", "api", *(job.service for job in at.jobs)):
        url: str = getattr(at, f"{name}_url")
        up = answers(f"{url}/readyz")
        yield Finding("ports", name, f"{url} {'is ready' if up else 'is not ready'}", up)


def kept(at: Endpoints) -> Iterator[Finding]:
    """Are the topics there, with their partitions and settings? Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": at.kafka, "log_level": 0})
    there = admin.list_topics(timeout=ANSWER_S).topics
    for name, wanted in topics.settings_of_topics().items():
        full = at.prefix + name
        if full not in there:
            yield Finding("topics", name, "is not there", False)
            continue
        resource = ConfigResource(ResourceType.TOPIC, full)
        settings = admin.describe_configs([resource])[resource].result(ANSWER_S)
        count = len(there[full].partitions)
        wrong = [f"{key} is {settings[key].value}, not {value}" for key, value in wanted.items()
                 if settings[key].value != value]  # fmt: skip
        if count != PARTITIONS:
            wrong.append(f"{count} partitions, not {PARTITIONS}")
        shown = [settings[key].value for key in ("cleanup.policy", "message.timestamp.type")]
        yield Finding("topics", name, "; ".join(wrong) or f"{count} partitions, {', '.join(shown)}", not wrong)


def leased(at: Endpoints) -> Iterator[Finding]:
    """Does the coordinator answer, and is no more granted than there is? Raises LeaseStoreUnavailable, OSError."""
    store = open_store(at.lease_store, token=at.lease_token_file.read_text().strip())
    try:
        found = store.status(at.resource)
    except UnknownResource:
        yield Finding("capacity", at.resource, "no job has asked for it yet", None)
        return
    finally:
        store.close()
    words = f"{found.shared_capacity} units/s, {found.granted} granted to {len(found.owners)} jobs, {found.used} used"
    granted, shared = (sum(by_dimension(amount).values()) for amount in (found.granted, found.shared_capacity))
    yield Finding("capacity", at.resource, words, granted <= shared)


def lag(at: Endpoints) -> Iterator[Finding]:
    """What moves at the moment. Raises Unreachable."""
    with closing(Offsets(at)) as offsets:
        moving, messages = settling.look(at, offsets)
    for words in moving:
        part, _, rest = words.partition(": ")
        yield Finding("lag", part, rest, None)
    if not moving:
        yield Finding("lag", "all parts", f"nothing is behind after {messages} messages")


def accounts(at: Endpoints) -> Iterator[Finding]:
    """The identities and the sum over all records since the topics were made. Raises Unreachable."""
    if _trimmed(at):
        yield Finding("accounts", "sum", "the topics no longer have their first records", None)
        return
    before = evidence.mark(at)
    found = account(Mark(), before, evidence.read(at, {}, before.ends), None)
    moved = _moved(before, evidence.mark(at)) or not _quiet(at)
    for line in found.lines:
        if not line.holds or not moved:
            yield Finding("accounts", line.name, f"{line.left} = {line.right}" if line.holds else
                          f"{line.left} is not {line.right}", None if moved else line.holds)  # fmt: skip
    words = (
        f"in {found.into} = out {found.out} + dead letters {found.dead} + discarded {sum(found.discarded.values())}"
        f" + pending {found.pending}"
    )
    yield Finding("accounts", "sum", f"{words} (in motion, not judged)" if moved else words,
                  None if moved else found.sum.holds)  # fmt: skip


def show(findings: list[Finding], console: Console) -> None:
    """Print the findings as a table."""
    table = Table(box=None, show_header=False)
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column()
    group = ""
    for finding in findings:
        table.add_row(
            finding.group if finding.group != group else "", _verdict(finding.good), finding.name, finding.words
        )
        group = finding.group
    console.print(table)


def _quiet(at: Endpoints) -> bool:
    with closing(Offsets(at)) as offsets:
        return not settling.look(at, offsets)[0]


def _moved(before: Mark, after: Mark) -> bool:
    def messages(mark: Mark) -> tuple[int, ...]:
        names = (("registration", "in"), ("registration", "pending"), ("batching", "in"), ("batching", "members"))
        return tuple(mark.gauges.get(stage, {}).get(name, 0) for stage, name in names)

    written = [(mark.totals, mark.archived) for mark in (before, after)]
    return messages(before) != messages(after) or written[0] != written[1]


def _trimmed(at: Endpoints) -> bool:
    with closing(Offsets(at)) as offsets:
        return any(offsets.begins().values())


def _found(name: str, ask: Callable[[], str]) -> Finding:
    try:
        return Finding("versions", name, ask())
    except (HeadraceError, OSError, subprocess.SubprocessError) as error:
        return Finding("versions", name, str(error), False)


def _java() -> str:
    return _first_line(java(), "-version")


def _jars() -> Iterator[Finding]:
    for jars in (KAFKA, CONNECTOR):
        there = (cache_dir() / f"{jars.name}-{jars.version}" / "complete").is_file()
        words = jars.version if there else f"{jars.version}, will be fetched at the first start"
        yield Finding("versions", f"{jars.name} jars", words, True if there else None)


def _first_line(*command: Any) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    return (ran.stdout + ran.stderr).strip().partition("\n")[0]


def _verdict(good: bool | None) -> Text:
    if good is None:
        return Text("-")
    return Text("ok", style="green") if good else Text("BAD", style="bold red")
