"""A folder that is mounted here; no JVM is needed."""

from __future__ import annotations

import os
from pathlib import Path

from headrace_spark.folders.port import beside


class LocalFolder:
    """A `Folder` of the operating system."""

    def __init__(self, at: Path) -> None:
        self._at = at.resolve()

    def __str__(self) -> str:
        return str(self._at)

    @property
    def uri(self) -> str:
        """Not percent-encoded: Hadoop takes the text of a path as it is."""
        return f"file://{self._at}"

    def make(self) -> None:
        """`Folder`."""
        self._at.mkdir(parents=True, exist_ok=True)

    def names(self, folder: str) -> list[str]:
        """`Folder`."""
        try:
            return os.listdir(self._at / folder)
        except FileNotFoundError:
            return []

    def read(self, file: str) -> bytes | None:
        """`Folder`."""
        try:
            return (self._at / file).read_bytes()
        except FileNotFoundError:
            return None

    def begin(self, file: str) -> _NewFile:
        """`Folder`."""
        return _NewFile(self._at / file)

    def appear(self, file: str, content: bytes) -> None:
        """`Folder`. Without hard links a crash may leave it cut: the newest entry and not committed, so `headrace
        checkpoint doctor` may remove it."""
        scratch = self._at / beside(file)
        try:
            _NewFile(scratch).finish(content)
            os.link(scratch, self._at / file)
        except FileExistsError:
            raise
        except OSError:
            self.begin(file).finish(content)
        finally:
            scratch.unlink(missing_ok=True)
        _durable((self._at / file).parent)

    def replace(self, file: str, content: bytes) -> None:
        """`Folder`."""
        scratch = self._at / beside(file)
        try:
            _NewFile(scratch).finish(content)
            scratch.replace(self._at / file)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise
        _durable(scratch.parent)

    def remove(self, file: str) -> None:
        """`Folder`."""
        (self._at / file).unlink(missing_ok=True)


class _NewFile:
    """Exclusively and durably, as Spark's commit files must be."""

    def __init__(self, file: Path) -> None:
        self._folder = file.parent
        self._out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def finish(self, content: bytes) -> None:
        """`NewFile`."""
        try:
            while content:
                content = content[os.write(self._out, content) :]
            os.fsync(self._out)
        finally:
            os.close(self._out)
        _durable(self._folder)


def _durable(folder: Path) -> None:
    """The folder's names, too."""
    at = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)
