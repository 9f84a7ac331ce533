"""A TCP proxy on the loopback whose faults the test chooses: cut, reset, half open, delay, one byte at a time."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable


class Proxy:
    """Listens at `port` and passes on to `target`. Faults concern what the target sends, if nothing else is said."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._frozen = False
        self._closed = False
        self._reset_after: int | None = None
        self.step = 65_536
        self.delay_s = 0.0
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                near.close()
                continue
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(None)
            self.connections += 1
            self._frozen = False
            self._pairs.append((near, far))
            frozen = threading.Event()
            self._freeze_last = frozen.set
            threading.Thread(target=self._pump, args=(near, far, frozen, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, frozen, True), daemon=True).start()

    _freeze_last: Callable[[], None] = staticmethod(lambda: None)

    def _pump(self, source: socket.socket, sink: socket.socket, frozen: threading.Event, faulty: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self.step if faulty else 65_536):
                if frozen.is_set():
                    continue  # swallowed: neither side hears of the other any more
                if faulty and self.delay_s:
                    time.sleep(self.delay_s)
                if faulty and self._reset_after is not None:
                    sink.sendall(data[: self._reset_after])
                    if len(data) > self._reset_after:
                        self._reset_after = None
                        reset(sink)
                        source.close()
                        return
                    self._reset_after -= len(data)
                    continue
                sink.sendall(data)
        if not frozen.is_set():
            for sock in (source, sink):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def half_open(self) -> None:
        """The connection that there is passes nothing on any more, and nobody is told. Later ones do."""
        self._freeze_last()

    def cut(self) -> None:
        """End all connections."""
        for pair in self._pairs:
            for sock in pair:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def reset_after(self, count: int) -> None:
        """A TCP reset when the target has sent so many more bytes."""
        self._reset_after = count

    def close(self) -> None:
        """End everything."""
        self._closed = True
        self._listener.close()
        self.cut()


def reset(sock: socket.socket) -> None:
    """Close with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
