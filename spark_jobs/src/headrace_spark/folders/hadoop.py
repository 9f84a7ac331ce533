"""A folder on any file system of Hadoop (`hdfs://`, `s3a://`, `abfss://`...), by way of Spark's JVM.

Theory: names in one folder of HDFS are changed by one name node, one at a time. So `create` without overwriting has one
winner, and `FileContext.rename`, which Spark's own CheckpointFileManager uses, replaces at once or refuses at once, as
it is told. Others promise less; the probe of `checkpoint.py` decides. What Hadoop raises becomes an OSError that says
in one line what is wrong.

A call waits in a thread of its own, because Hadoop may try for a quarter of an hour before it gives up: what has not
answered by then is `Away`, and the thread does not keep the process from ending.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from queue import Empty, SimpleQueue
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError

from headrace_spark.folders.port import Away, beside

PATIENCE_S: Final = 60.0
_KINDS: Final[Mapping[str, type[OSError]]] = MappingProxyType({
    "FileAlreadyExistsException": FileExistsError,
    "AlreadyBeingCreatedException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
    "NoSuchFileException": FileNotFoundError,
    "AccessControlException": PermissionError,
    "AccessDeniedException": PermissionError,
    "AuthorizationException": PermissionError,
    "ParentNotDirectoryException": NotADirectoryError,
    "ConnectException": Away,
    "NoRouteToHostException": Away,
    "UnknownHostException": Away,
    "SocketException": Away,
    "SocketTimeoutException": Away,
    "ConnectTimeoutException": Away,
    "EOFException": Away,
    "StandbyException": Away,
    "SafeModeException": Away,
    "RetriableException": Away,
})  # fmt: skip
"""By the class of what Java raised, or of what that was caused by."""
_WRAPPERS: Final = frozenset({"RuntimeException", "IllegalArgumentException", "UncheckedIOException"})
"""Say only what their cause says."""
T = TypeVar("T")


class HadoopFolder:
    """A `Folder`. `gateway` is py4j's way into the JVM, `configuration` Hadoop's; a call waits for `patience_s`."""

    def __init__(self, gateway: Any, configuration: Any, uri: str, *, patience_s: float = PATIENCE_S) -> None:
        self._gateway, self._hadoop = gateway, gateway.jvm.org.apache.hadoop.fs
        self._configuration, self._patience_s = configuration, patience_s
        self._uri = normal(uri)

    def __str__(self) -> str:
        return self._uri

    @property
    def uri(self) -> str:
        """`Folder`."""
        return self._uri

    def make(self) -> None:
        """`Folder`."""
        self._bounded(lambda: self._files.mkdirs(self._path("")))

    def names(self, folder: str) -> list[str]:
        """`Folder`."""

        def listed() -> list[str]:
            return [found.getPath().getName() for found in self._files.listStatus(self._path(folder))]

        try:
            return self._bounded(listed)
        except FileNotFoundError:
            return []

    def read(self, file: str) -> bytes | None:
        """`Folder`."""

        def content() -> bytes:
            source = self._files.open(self._path(file))
            try:
                return bytes(source.readAllBytes())
            finally:
                source.close()

        try:
            return self._bounded(content)
        except FileNotFoundError:
            return None

    def begin(self, file: str) -> _NewFile:
        """`Folder`."""
        return _NewFile(self._bounded(lambda: self._files.create(self._path(file), False)), self._bounded)

    def appear(self, file: str, content: bytes) -> None:
        """`Folder`."""
        self._renamed(file, content, "NONE")

    def replace(self, file: str, content: bytes) -> None:
        """`Folder`."""
        self._renamed(file, content, "OVERWRITE")

    def remove(self, file: str) -> None:
        """`Folder`."""
        self._bounded(lambda: self._files.delete(self._path(file), False))

    def _renamed(self, file: str, content: bytes, how: str) -> None:
        scratch = beside(file)
        self.begin(scratch).finish(content)
        try:
            self._bounded(lambda: self._context.rename(self._path(scratch), self._path(file), self._option(how)))
        except OSError as error:
            if not isinstance(error, Away):
                self.remove(scratch)
            raise

    def _option(self, how: str) -> Any:
        """As an array, because Java's method takes any number."""
        options = getattr(self._hadoop, "Options$Rename")
        found = self._gateway.new_array(options, 1)
        found[0] = getattr(options, how)
        return found

    @cached_property
    def _files(self) -> Any:
        return self._hadoop.FileSystem.get(self._path("").toUri(), self._configuration)

    @cached_property
    def _context(self) -> Any:
        """The same by Hadoop's other interface: only that one renames as it is told."""
        return self._hadoop.FileContext.getFileContext(self._path("").toUri(), self._configuration)

    def _path(self, file: str) -> Any:
        return self._hadoop.Path(f"{self._uri}/{file}" if file else self._uri)

    def _bounded(self, work: Callable[[], T]) -> T:
        ended: SimpleQueue[Future[T]] = SimpleQueue()

        def run() -> None:
            future: Future[T] = Future()
            try:
                with _translated():
                    future.set_result(work())
            except Exception as error:
                future.set_exception(error)
            ended.put(future)

        Thread(target=run, daemon=True).start()
        try:
            return ended.get(timeout=self._patience_s).result()
        except Empty:
            raise Away(f"no answer for {self._patience_s:g} s") from None


class _NewFile:
    """What is written, while others may look for it."""

    def __init__(self, out: Any, bounded: Callable[[Callable[[], None]], None]) -> None:
        self._out, self._bounded = out, bounded

    def finish(self, content: bytes) -> None:
        """`NewFile`. Durable as far as the file system can tell: an object store has it when it is closed."""

        def write() -> None:
            try:
                self._out.write(content)
                if self._out.hasCapability("hsync"):
                    self._out.hsync()
            finally:
                self._out.close()

        self._bounded(write)


def normal(uri: str) -> str:
    """The same name for the same folder: scheme in lower case, slashes one at a time, none at the end."""
    scheme, _, rest = uri.partition(":")
    authority, path = "", rest
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        path = slash + path
    path = re.sub("/+", "/", path).rstrip("/")
    return f"{scheme.lower()}://{authority}{path}"


@contextmanager
def _translated() -> Iterator[None]:
    """What py4j raises as an OSError of one line."""
    try:
        yield
    except Py4JJavaError as error:
        causes = list(_causes(error.java_exception))
        kind = next((_KINDS[name] for name, _ in causes if name in _KINDS), OSError)
        name, said = causes[-1] if causes[0][0] in _WRAPPERS else causes[0]
        raise kind(f"{name}: {said}") from None
    except (Py4JError, OSError) as error:
        raise Away(f"Spark's JVM does not answer: {_line(str(error))}") from None


def _causes(raised: Any) -> Iterator[tuple[str, str]]:
    """The simple name of each class, that of the far side for what came from there, and its text."""
    while raised is not None:
        name = raised.getClass().getSimpleName()
        if name == "RemoteException":
            name = raised.getClassName().rpartition(".")[2]
        yield name, _line(raised.getMessage() or "")
        raised = raised.getCause()


def _line(said: str) -> str:
    """Without the far side's stack trace and the address of a page about it."""
    return said.partition("\n")[0].partition("; For more details")[0].strip()
