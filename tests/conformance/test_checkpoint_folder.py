"""One suite for both folders of a checkpoint: of this host, and on a real HDFS by way of a JVM."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import ConfigError
from headrace_spark import checkpoint, losses
from headrace_spark.exits import CheckpointRefused
from headrace_spark.folders.port import Away, Folder
from headrace_spark.jobs.folder import checkpoint_folder
from tests.support.hdfs import CLIENT, Hdfs, end_jvm, hdfs
from tests.support.spark_job import SPARK

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
OPTIONS = {**SPARK, **CLIENT}
Open = Callable[..., Folder]
_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":5000,"conf":{}}\n{"headrace.batches":{"0":%d}}'
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as found:
        yield found
        end_jvm()


@pytest.fixture(params=["local", "file", "hdfs", "viewfs"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a folder that nobody else uses, or one below it; none is made yet."""
    number, options = next(_numbers), dict(OPTIONS)
    match request.param:
        case "local":
            base = str(tmp_path / "c")
        case "file":
            base = f"file:{tmp_path}/c"
        case "viewfs":  # another file system, which the configuration describes
            options["spark.hadoop.fs.viewfs.mounttable.all.link./mounted"] = request.getfixturevalue("server").url + "/"
            base = f"viewfs://all/mounted/c{number}"
        case _:
            base = f"{request.getfixturevalue('server').url}/c{number}"
    return lambda *below: checkpoint_folder("/".join([base, *below]), options)


@pytest.fixture
def folder(opened: Open) -> Folder:
    """A folder with the folders of a checkpoint."""
    for below in ("offsets", "commits", "sources/0"):
        opened(below).make()
    return opened()


def test_what_is_written_is_read_byte_by_byte_and_listed(folder: Folder) -> None:
    contents = {"a": b"", "b": bytes(range(256)), "offsets/3": b"x" * 200_000}
    for name, content in contents.items():
        folder.begin(name).finish(content)
    assert {name: folder.read(name) for name in contents} == contents
    assert sorted(folder.names("")) == ["a", "b", "commits", "offsets", "sources"]
    assert folder.names("offsets") == ["3"]


def test_what_is_not_there_is_none_and_empty_and_can_be_removed(opened: Open) -> None:
    nothing = opened("nothing")
    assert nothing.read("a") is None
    assert nothing.names("") == nothing.names("a") == []
    nothing.remove("a")
    nothing.make()
    nothing.make()
    assert nothing.names("") == []
    assert opened().names("") == ["nothing"]


def test_a_file_that_two_begin_has_one_author(folder: Folder) -> None:
    first = folder.begin("a")
    with pytest.raises(FileExistsError):
        folder.begin("a").finish(b"second")
    first.finish(b"first")
    with pytest.raises(FileExistsError):
        folder.begin("a").finish(b"third")
    assert folder.read("a") == b"first"


def test_what_appears_does_not_take_the_place_of_another(folder: Folder) -> None:
    folder.appear("offsets/1", b"first")
    with pytest.raises(FileExistsError):
        folder.appear("offsets/1", b"second")
    assert (folder.read("offsets/1"), folder.names("offsets")) == (b"first", ["1"])


def test_of_many_that_make_one_file_at_one_time_one_does(folder: Folder) -> None:
    start = threading.Barrier(6)

    def appear(number: int) -> bool:
        start.wait()
        try:
            folder.appear("offsets/7", b"%d" % number)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = [number for number, did in enumerate(pool.map(appear, range(6))) if did]
    assert folder.read("offsets/7") == b"%d" % won[0]
    assert (len(won), folder.names("offsets")) == (1, ["7"])


def test_whoever_reads_what_is_replaced_finds_all_of_one_version(folder: Folder) -> None:
    versions = [bytes([number]) * 50_000 for number in range(20)]
    folder.replace("metadata", versions[0])
    read: list[bytes | None] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            read.append(folder.read("metadata"))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        for version in versions[1:]:
            folder.replace("metadata", version)
        done.set()
        looking.result()
    assert len(read) > 1
    assert [one for one in read if one not in versions] == []
    assert folder.read("metadata") == versions[-1]
    assert not [name for name in folder.names("") if name.startswith(".")]


def test_a_removed_file_can_be_made_again(folder: Folder) -> None:
    folder.appear("offsets/1", b"first")
    folder.remove("offsets/1")
    assert folder.names("offsets") == []
    folder.appear("offsets/1", b"second")
    assert folder.read("offsets/1") == b"second"


def test_one_folder_has_one_name(opened: Open) -> None:
    assert str(opened()) == str(opened("")) == str(opened("", ""))
    assert str(opened()) != str(opened("a"))
    assert str(checkpoint_folder(opened().uri, OPTIONS)) == str(opened()), "the one that Spark is told is this one"


def test_below_a_file_nothing_can_be_made(folder: Folder, opened: Open) -> None:
    folder.begin("a").finish(b"")
    below = opened("a", "b")
    with pytest.raises(ConfigError, match="cannot be used"), checkpoint.usable(below, None):
        checkpoint.probe(below)


def test_it_passes_the_probe_of_many_at_one_time_and_nothing_is_left(opened: Open) -> None:
    new = opened("deep", "er")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(checkpoint.probe, [new] * 4))
    assert new.names("") == []


def fill(folder: Folder, first: int = 3, last: int = 6) -> None:
    """Micro-batches `first` to `last`, all but the newest in Spark's commit log."""
    folder.begin("metadata").finish(b'{"id":"q"}')
    for number in range(first, last + 1):
        folder.begin(f"offsets/{number}").finish((_OFFSETS % number).encode())
        if number < last:
            folder.begin(f"commits/{number}").finish(b"v1\n{}")


def test_a_whole_checkpoint_is_taken(folder: Folder) -> None:
    fill(folder)
    known = ("q", str(folder))
    checkpoint.check(known, folder, new_query=False, new_checkpoint=False)
    checkpoint.whole(folder, 6)
    assert checkpoint.query_id(folder) == "q"
    assert [(one.batch_id, one.problem, one.committed) for one in checkpoint.examine(folder)] == [
        (3, "", True), (4, "", True), (5, "", True), (6, "", False),
    ]  # fmt: skip
    assert losses.needed(folder, None) == {("headrace.batches", 0): 5}
    assert losses.needed(folder, 6) == {("headrace.batches", 0): 6}


def test_offsets_of_the_first_micro_batch_come_from_its_source(folder: Folder) -> None:
    folder.begin("offsets/0").finish((_OFFSETS % 9).encode())
    folder.begin("sources/0/0").finish(b'\0v1\n{"headrace.batches":{"0":2}}')
    assert losses.needed(folder, None) == {("headrace.batches", 0): 2}


def damage(folder: Folder, what: str) -> None:
    match what:
        case "hole":
            folder.remove("offsets/4")
        case "empty":
            folder.replace("offsets/6", b"")
        case "cut":
            folder.replace("offsets/6", (_OFFSETS % 6).encode()[:-3])
        case "newest gone":
            folder.remove("offsets/6")
            folder.remove("offsets/5")


@pytest.mark.parametrize(
    ("what", "problem"),
    [
        ("hole", "offsets/4 is missing"),
        ("empty", "offsets/6 is empty"),
        ("cut", "offsets/6 is cut"),
        ("newest gone", "commits/ goes to 5, but offsets/ to 4"),
        ("", "the ledger has micro-batch 7, but offsets/ goes to 6"),
    ],
)
def test_damage_is_refused_with_its_name(folder: Folder, what: str, problem: str) -> None:
    fill(folder)
    damage(folder, what)
    with pytest.raises(CheckpointRefused, match=problem):
        checkpoint.whole(folder, None if what else 7)


def test_a_checkpoint_that_is_not_the_jobs_is_refused(folder: Folder, opened: Open) -> None:
    fill(folder)
    known = ("q", str(folder))
    with pytest.raises(CheckpointRefused, match="--new-checkpoint"):
        checkpoint.check(known, opened("other"), new_query=False, new_checkpoint=False)
    folder.remove("metadata")
    with pytest.raises(CheckpointRefused, match="metadata is missing"):
        checkpoint.check(known, folder, new_query=False, new_checkpoint=False)
    assert checkpoint.restore(folder, known, None) == checkpoint.query_id(folder) == "q"
    folder.replace("metadata", b"{")
    assert checkpoint.restore(folder, known, None) == checkpoint.query_id(folder) == "q"


def test_only_what_was_never_committed_can_be_removed(folder: Folder) -> None:
    fill(folder)
    with pytest.raises(CheckpointRefused, match="the ledger has it"):
        checkpoint.remove_newest(folder, 6)
    assert checkpoint.remove_newest(folder, 5) == 6
    with pytest.raises(CheckpointRefused, match="Spark's commit log has it"):
        checkpoint.remove_newest(folder, 5)
    assert sorted(folder.names("offsets")) == ["3", "4", "5"]


def test_of_two_drivers_one_awakens(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder)
    folder.begin("commits/6").finish(b"v1\n{}")
    before = checkpoint.examine(folder)
    assert checkpoint.awaken(folder, 9_000) == 7
    first = folder.read("offsets/7")
    assert b'"batchTimestampMs":9000' in (first or b"")
    monkeypatch.setattr(checkpoint, "examine", lambda _: before)  # the other one looked before that
    assert checkpoint.awaken(folder, 10_000) is None
    assert folder.read("offsets/7") == first
    assert sorted(folder.names("offsets")) == ["3", "4", "5", "6", "7"]


@pytest.fixture
def deaf() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.usefixtures("server")
def test_what_does_not_answer_is_away_within_a_bounded_time(deaf: int) -> None:
    away: Any = checkpoint_folder(f"hdfs://127.0.0.1:{deaf}/c", OPTIONS)
    away._patience_s = 2
    with pytest.raises(Away, match="no answer for 2 s"):
        away.names("")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("hdfs://127.0.0.1:1/c", Away, "ConnectException: .*Connection refused"),
        ("hdfs://no-such-host.invalid/c", Away, "UnknownHostException: no-such-host.invalid"),
        ("foo://host/c", OSError, 'UnsupportedFileSystemException: No FileSystem for scheme "foo"'),
        ("s3a://bucket/c", OSError, "ClassNotFoundException: .*S3AFileSystem not found"),
        ("hdfs:///c", OSError, "no host"),
    ],
)
def test_what_cannot_be_reached_or_is_not_known_says_so_in_one_line(name: str, kind: type[OSError], says: str) -> None:
    folder = checkpoint_folder(name, OPTIONS)
    with pytest.raises(kind, match=says) as caught:
        folder.make()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, Away) == (kind is Away)


@pytest.mark.usefixtures("server")
def test_it_is_away_for_a_job_that_knows_it_and_wrong_for_another() -> None:
    folder = checkpoint_folder("hdfs://127.0.0.1:1/c", OPTIONS)
    for known, refusal in (
        (None, ConfigError),
        (("q", "/c"), ConfigError),
        (("q", str(folder)), checkpoint.CheckpointAway),
    ):
        with pytest.raises(refusal, match="Connection refused"), checkpoint.usable(folder, known):
            checkpoint.whole(folder, None)
