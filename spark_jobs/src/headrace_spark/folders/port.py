"""What the checks of a checkpoint need of the file system that it is on (spark-writer.md 10 and 12).

Theory: a checkpoint is only as safe as two promises of its file system. A file that must be new is made by one process
alone, so of two drivers one goes on; and a file is there whole or not at all. Spark keeps the second one by renaming
what it wrote under another name, and the first by refusing to rename over a file. Both implementations pass one suite,
`tests/conformance/test_checkpoint_folder.py`.
"""

from __future__ import annotations

import re
import uuid
from typing import Final, Protocol

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
"""As Hadoop, which takes `hdfs:/folder` for `hdfs:///folder`; as the name of a folder here it would be a local one."""


class Away(OSError):
    """The file system does not answer. It may later."""


class NewFile(Protocol):
    """A file that was begun and that nobody else has made so far."""

    def finish(self, content: bytes) -> None:
        """Write it durably and close it. Raises FileExistsError if another one was first after all."""


class Folder(Protocol):
    """A folder; `str()` of it is its name, by which the state store knows it. Files are named from there, with `/`.

    All raise OSError: PermissionError, `Away` within a bounded time (a local folder: as the operating system does), or
    another one, whose text says why.
    """

    @property
    def uri(self) -> str:
        """As Spark takes it."""

    def make(self) -> None:
        """Make the folder and those above it, if they are not there."""

    def names(self, folder: str) -> list[str]:
        """What is in a folder below, in no order; empty if it is not there. `""`: this one."""

    def read(self, file: str) -> bytes | None:
        """The content, None if it is not there."""

    def begin(self, file: str) -> NewFile:
        """Begin a file that is not there. Raises FileExistsError, at the latest when it is finished."""

    def appear(self, file: str, content: bytes) -> None:
        """Make a file, durably, whole at once, and only if it is not there. Raises FileExistsError."""

    def replace(self, file: str, content: bytes) -> None:
        """The same, whether it is there or not."""

    def remove(self, file: str) -> None:
        """Remove a file, if it is there."""


def is_uri(checkpoint: str) -> bool:
    """Whether it names a file system, as `hdfs://...`, and is not simply a folder of this host."""
    return bool(_URI.match(checkpoint))


def beside(file: str) -> str:
    """A name in the same folder that no other process or call uses."""
    folder, slash, name = file.rpartition("/")
    return f"{folder}{slash}.headrace-{uuid.uuid4().hex}-{name}"
