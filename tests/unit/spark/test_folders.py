"""Where a checkpoint is, by its name alone. What a folder does: `tests/conformance/test_checkpoint_folder.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_spark.folders import hadoop
from headrace_spark.folders.local import LocalFolder
from headrace_spark.folders.port import is_uri
from headrace_spark.jobs.folder import checkpoint_folder
from headrace_spark.settings import load
from tests.unit.spark.test_settings import write


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("hdfs://nn:8020/a/b", "hdfs://nn:8020/a/b"),
        ("HDFS://nn:8020//a/b//", "hdfs://nn:8020/a/b"),
        ("hdfs:/a", "hdfs:///a"),
        ("hdfs:///a/", "hdfs:///a"),
        ("s3a://bucket/a", "s3a://bucket/a"),
        ("abfss://container@account.example/a", "abfss://container@account.example/a"),
    ],
)
def test_one_folder_has_one_name_however_it_is_written(given: str, name: str, tmp_path: Path) -> None:
    assert is_uri(given)
    assert hadoop.normal(given) == hadoop.normal(name) == name
    assert load(write(tmp_path, checkpoint=given)).checkpoint == given, "the job file takes it"


@pytest.mark.parametrize("scheme", ["", "file:", "file://", "FILE://", "file://localhost"])
def test_a_folder_of_this_host_needs_no_jvm(scheme: str, tmp_path: Path) -> None:
    folder = checkpoint_folder(f"{scheme}{tmp_path}/./a", {})
    assert isinstance(folder, LocalFolder)
    assert (str(folder), folder.uri) == (f"{tmp_path}/a", f"file://{tmp_path}/a")
    assert str(folder) == str(checkpoint_folder(str(tmp_path / "a"), {})), "as the state store knows it"


@pytest.mark.parametrize("name", ["c", "/c", "./c:d", "a/hdfs:b", "c:/d"])
def test_a_name_without_a_scheme_is_a_folder_of_this_host(name: str) -> None:
    assert not is_uri(name)


def test_a_link_and_what_it_leads_to_are_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "c")
    assert str(LocalFolder(tmp_path / "link")) == str(LocalFolder(tmp_path / "c"))


def test_spark_is_told_the_text_of_a_path_as_it_is(tmp_path: Path) -> None:
    assert LocalFolder(tmp_path / "a b%20").uri == f"file://{tmp_path}/a b%20"
