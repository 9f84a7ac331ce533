"""Whether a checkpoint is the job's own and whole, and the two commands that look after it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from headrace_core.errors import ConfigError
from headrace_spark import checkpoint, exits
from headrace_spark.counts import Counts
from headrace_spark.database import Database
from headrace_spark.exits import CheckpointRefused
from headrace_spark.folders.local import LocalFolder
from headrace_spark.folders.port import Away
from headrace_spark.jobs import process
from headrace_spark.jobs.checkpoint import main
from headrace_spark.ledger import Ledger
from headrace_spark.sinks.port import Batch
from tests.unit.spark.test_settings import write

_OFFSETS = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"headrace.batches":{"0":7}}'


class Folder:
    """A checkpoint with micro-batches `first` to `last`, all but the newest in Spark's commit log, and a job file."""

    def __init__(self, at: Path, first: int = 3, last: int = 6) -> None:
        self.at = at / "checkpoint"
        for name in ("offsets", "commits"):
            (self.at / name).mkdir(parents=True)
        for number in range(first, last + 1):
            self.offsets(number).write_text(_OFFSETS)
            (self.at / "offsets" / f".{number}.crc").write_bytes(b"crc")
        for number in range(first, last):
            (self.at / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        self.metadata = self.at / "metadata"
        self.metadata.write_text('{"id":"q"}')
        self.config = write(at, checkpoint=str(self.at), state_dsn=f"sqlite://{at}/state.db")
        self.ledger = Ledger(Database(f"sqlite://{at}/state.db"), "writer")
        self.ledger.prepare()
        self.ledger.remember("q", str(self.at))

    def offsets(self, number: int) -> Path:
        return self.at / "offsets" / str(number)

    def write_ledger(self, to: int) -> None:
        for number in range(to + 1):
            self.ledger.commit(Batch("q", number), Counts(), [], 0)

    def run(self, *arguments: str) -> int:
        return main([arguments[0], "--config", str(self.config), *arguments[1:]])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_checkpoint_is_accepted_only_if_it_is_the_jobs_own(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    (own / "metadata").write_text('{"id":"q"}')
    known = ("q", str(own))
    no = {"new_query": False, "new_checkpoint": False}
    checkpoint.check(None, LocalFolder(other), **no)
    checkpoint.check(known, LocalFolder(own), **no)
    with pytest.raises(exits.CheckpointRefused, match="--new-checkpoint"):
        checkpoint.check(known, LocalFolder(other), **no)
    checkpoint.check(known, LocalFolder(other), new_query=False, new_checkpoint=True)
    with pytest.raises(exits.CheckpointRefused, match="--new-query"):
        checkpoint.check(("p", str(own)), LocalFolder(own), **no)
    (own / "metadata").unlink()
    with pytest.raises(exits.CheckpointRefused, match="missing"):
        checkpoint.check(known, LocalFolder(own), **no)
    checkpoint.check(known, LocalFolder(own), new_query=True, new_checkpoint=False)
    (own / "metadata").write_text("")
    with pytest.raises(exits.CheckpointRefused, match="cannot be read"):
        checkpoint.check(known, LocalFolder(own), **no)


def test_a_checkpoint_that_is_whole_is_taken_and_listed(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write_ledger(6)
    checkpoint.whole(LocalFolder(folder.at), 6)
    checkpoint.whole(LocalFolder(folder.at / "new"), None)
    assert folder.run("doctor") == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        *(f"offsets/{number}: committed, in the ledger" for number in (3, 4, 5)),
        "offsets/6: not committed, in the ledger",
    ]
    assert said.err == ""


def test_a_folder_that_cannot_hold_a_checkpoint_is_refused(tmp_path: Path) -> None:
    probe(tmp_path / "new" / "deep")
    assert list((tmp_path / "new" / "deep").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        probe(tmp_path / "file")


def probe(at: Path) -> None:
    """As the writer."""
    folder = LocalFolder(at)
    with checkpoint.usable(folder, None):
        checkpoint.probe(folder)


def hole(folder: Folder) -> None:
    folder.offsets(4).unlink()


def empty(folder: Folder) -> None:
    folder.offsets(6).write_text("")


def cut(folder: Folder) -> None:
    folder.offsets(6).write_text(_OFFSETS[:-3])


def cut_early(folder: Folder) -> None:
    folder.offsets(6).write_text(_OFFSETS[:20])


def newest_gone(folder: Folder) -> None:
    folder.offsets(6).unlink()
    folder.offsets(5).unlink()


def behind_the_ledger(folder: Folder) -> None:
    folder.write_ledger(7)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (hole, "offsets/4 is missing"),
        (empty, "offsets/6 is empty"),
        (cut, "offsets/6 is cut"),
        (cut_early, "offsets/6 is cut"),
        (newest_gone, "commits/ goes to 5, but offsets/ to 4"),
        (behind_the_ledger, "the ledger has micro-batch 7, but offsets/ goes to 6"),
    ],
)
def test_damage_is_refused_with_its_name(
    folder: Folder, damage: object, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(damage)
    damage(folder)
    with pytest.raises(CheckpointRefused, match=problem):
        checkpoint.whole(LocalFolder(folder.at), folder.ledger.newest("q"))
    assert folder.run("doctor") == 3
    assert problem in capsys.readouterr().err


def test_only_a_newest_entry_that_was_never_committed_can_be_removed(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    empty(folder)
    assert folder.run("doctor", "--remove-newest") == 0
    assert sorted(path.name for path in (folder.at / "offsets").iterdir()) == [
        ".3.crc",
        ".4.crc",
        ".5.crc",
        "3",
        "4",
        "5",
    ]
    assert folder.run("doctor", "--remove-newest") == 3
    assert "offsets/5 was committed: Spark's commit log has it" in capsys.readouterr().err
    assert folder.offsets(5).exists()


def test_an_entry_that_the_ledger_has_stays(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write_ledger(6)
    assert folder.run("doctor", "--remove-newest") == 3
    assert "offsets/6 was committed: the ledger has it" in capsys.readouterr().err
    assert folder.offsets(6).exists()


@pytest.mark.parametrize("content", [None, "", "{"])
def test_a_missing_query_id_is_restored_from_the_state_store(folder: Folder, content: str | None) -> None:
    folder.metadata.unlink()
    (folder.at / ".metadata.crc").write_bytes(b"crc")
    if content is not None:
        folder.metadata.write_text(content)
    assert folder.run("doctor") == 3
    assert folder.run("repair") == 0
    assert json.loads(folder.metadata.read_text()) == {"id": "q"}
    assert not (folder.at / ".metadata.crc").exists()
    assert folder.run("doctor") == 0
    assert folder.run("repair") == 0


def test_a_query_id_is_not_restored_into_a_folder_that_is_not_the_jobs(folder: Folder) -> None:
    folder.metadata.write_text('{"id":"other"}')
    assert folder.run("repair") == 3
    folder.metadata.unlink()
    folder.ledger.remember("q", "/elsewhere")
    assert folder.run("repair") == 3
    assert not folder.metadata.exists()


def test_nor_into_an_emptied_folder_whose_batch_ids_would_start_again(folder: Folder) -> None:
    folder.metadata.unlink()
    folder.write_ledger(2)
    for name in ("offsets", "commits"):
        for file in (folder.at / name).iterdir():
            file.unlink()
    assert folder.run("repair") == 3
    assert not folder.metadata.exists()


def test_nor_for_a_job_that_nobody_knows(tmp_path: Path) -> None:
    config = write(tmp_path, checkpoint=str(tmp_path / "c"), state_dsn=f"sqlite://{tmp_path}/other.db")
    assert main(["repair", "--config", str(config)]) == 3
    assert main(["doctor", "--config", str(config)]) == 0
    assert main(["doctor", "--config", str(tmp_path / "none.toml")]) == 2


def test_the_command_line_passes_it_on(folder: Folder) -> None:
    folder.metadata.unlink()
    command = [sys.executable, "-m", "headrace", "checkpoint"]
    refused = subprocess.run(
        [*command, "doctor", "--config", folder.config], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 3
    assert "headrace checkpoint repair" in refused.stderr
    done = subprocess.run([*command, "repair", "--config", folder.config], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "metadata names the query q\n")


def test_the_probe_leaves_nothing_and_makes_the_folder(tmp_path: Path) -> None:
    probe(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_probes_of_two_drivers_do_not_disturb_each_other(tmp_path: Path) -> None:
    threads = [Thread(target=probe, args=(tmp_path,)) for _ in range(8)]
    with catch() as raised:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert raised == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("created twice", "created twice"),
        ("rename copies", "renaming does not replace"),
        ("write is lost", "renaming does not replace"),
        ("not durable", "cannot be used"),
        ("read only", "cannot be used"),
    ],
)
def test_a_store_that_lacks_one_thing_is_refused(
    broken: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As object stores behind a file system do."""
    real_open = os.open
    match broken:
        case "created twice":
            monkeypatch.setattr(os, "open", lambda at, flags, mode=0o777: real_open(at, flags & ~os.O_EXCL, mode))
        case "rename copies":
            monkeypatch.setattr(Path, "replace", lambda one, two: Path(two).write_bytes(one.read_bytes()))
        case "write is lost":
            monkeypatch.setattr(os, "write", lambda _, content: len(content))
        case "not durable":
            monkeypatch.setattr(os, "fsync", _refuse)
        case _:
            monkeypatch.setattr(os, "open", _refuse)
    with pytest.raises(ConfigError, match=says) as caught:
        probe(tmp_path)
    assert caught.value.field == "checkpoint"
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOTSUP, "not supported")


@contextmanager
def catch() -> Iterator[list[object]]:
    """What threads raise."""
    raised: list[object] = []
    before, threading.excepthook = threading.excepthook, raised.append
    try:
        yield raised
    finally:
        threading.excepthook = before


def committed(folder: Folder) -> Folder:
    (folder.at / "commits" / "6").write_text('v1\n{"nextBatchWatermarkMs":0}')
    folder.offsets(6).write_text(_OFFSETS.replace('"conf"', '"batchTimestampMs":5000,"conf"'))
    return folder


@pytest.mark.parametrize(("now_ms", "found"), [(9_000, 9_000), (5_001, 5_001), (5_000, 5_001), (0, 5_001)])
def test_a_committed_checkpoint_is_given_a_micro_batch_that_reads_nothing(
    folder: Folder, now_ms: int, found: int
) -> None:
    committed(folder)
    assert checkpoint.awaken(LocalFolder(folder.at), now_ms) == 7
    version, metadata, offsets = folder.offsets(7).read_text().splitlines()
    assert (version, offsets) == ("v1", '{"headrace.batches":{"0":7}}'), "as in the one before"
    assert json.loads(metadata) == {"batchWatermarkMs": 0, "batchTimestampMs": found, "conf": {}}
    assert checkpoint.problems(LocalFolder(folder.at), 6) == []
    assert checkpoint.awaken(LocalFolder(folder.at), 99_000) is None, "it is left to be done"
    assert json.loads(folder.offsets(7).read_text().splitlines()[1])["batchTimestampMs"] == found
    assert sorted(file.name for file in (folder.at / "offsets").iterdir() if file.name.startswith(".headrace")) == []


def test_what_is_left_to_be_repeated_or_begun_is_not_awakened(folder: Folder, tmp_path: Path) -> None:
    assert checkpoint.awaken(LocalFolder(folder.at), 9_000) is None
    assert not folder.offsets(7).exists()
    assert checkpoint.awaken(LocalFolder(tmp_path / "new"), 9_000) is None
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("links", [True, False])
def test_of_two_drivers_one_awakens(folder: Folder, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    committed(folder)
    before = checkpoint.examine(LocalFolder(folder.at))
    if not links:
        monkeypatch.setattr(os, "link", raising(OSError(errno.EPERM, "no hard links")))
    assert checkpoint.awaken(LocalFolder(folder.at), 9_000) == 7
    first = folder.offsets(7).read_bytes()
    monkeypatch.setattr(checkpoint, "examine", lambda _: before)  # the other one looked before that
    assert checkpoint.awaken(LocalFolder(folder.at), 10_000) is None
    assert folder.offsets(7).read_bytes() == first


def raising(error: Exception) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise error

    return refuse


class Store:
    """A `Folder` in memory, which promises what object stores do and do not."""

    uri = "store://c"

    def __init__(self, *, looks_before: bool = False, copies: bool = False) -> None:
        self._looks_before, self._copies = looks_before, copies
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._looked = threading.Barrier(2)

    def __str__(self) -> str:
        return self.uri

    def make(self) -> None:
        pass

    def names(self, folder: str) -> list[str]:
        assert folder == ""
        return list(self._files)

    def read(self, file: str) -> bytes | None:
        return self._files.get(file)

    def begin(self, file: str) -> Begun:
        if file in self._files:
            raise FileExistsError(file)
        return Begun(self, file)

    def put(self, file: str, content: bytes) -> None:
        with self._lock:
            if file in self._files and not self._looks_before:
                raise FileExistsError(file)
            self._files[file] = content

    def appear(self, file: str, content: bytes) -> None:
        there = file in self._files
        if not self._copies:
            self.put(file, content)
        elif there:
            raise FileExistsError(file)
        else:
            self._looked.wait(10)
            self._files[file] = content

    def replace(self, file: str, content: bytes) -> None:
        self._files[file] = content

    def remove(self, file: str) -> None:
        self._files.pop(file, None)


class Begun:
    def __init__(self, store: Store, file: str) -> None:
        self._store, self._file = store, file

    def finish(self, content: bytes) -> None:
        self._store.put(self._file, content)


def test_a_store_that_has_a_file_only_when_it_is_finished_may_refuse_the_second_then() -> None:
    store = Store()
    checkpoint.probe(store)
    assert store.names("") == []


@pytest.mark.parametrize(
    ("lacks", "says"), [({"looks_before": True}, "created twice"), ({"copies": True}, "renaming replaces")]
)
def test_a_store_that_looks_before_it_writes_is_refused(lacks: dict[str, bool], says: str) -> None:
    """S3 before it knew conditions; and a rename that looks, copies and deletes."""
    store = Store(**lacks)
    with pytest.raises(ConfigError, match=says):
        checkpoint.probe(store)
    assert store.names("") == []


def test_a_driver_that_runs_may_remove_the_oldest_entry_meanwhile(folder: Folder) -> None:
    class Removing(LocalFolder):
        def read(self, file: str) -> bytes | None:
            return None if file == "offsets/3" else super().read(file)

    assert checkpoint.problems(Removing(folder.at), 6) == []


def test_what_the_folder_refuses_is_the_job_files_mistake_unless_it_is_away_and_known(tmp_path: Path) -> None:
    at = LocalFolder(tmp_path)
    refused = PermissionError(errno.EACCES, "denied")
    for error, known, refusal in (
        (refused, None, ConfigError),
        (refused, ("q", str(at)), ConfigError),
        (Away("no answer"), None, ConfigError),
        (Away("no answer"), ("q", "elsewhere"), ConfigError),
        (Away("no answer"), ("q", str(at)), checkpoint.CheckpointAway),
    ):
        with pytest.raises(refusal, match=str(tmp_path)), checkpoint.usable(at, known):
            raise error
    assert process.exit_code(checkpoint.CheckpointAway("no answer")) == exits.FAILURE, "a supervisor starts it again"
