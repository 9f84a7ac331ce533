"""Which port a service gets: its usual one, or a free one below the range of outgoing connections.

A port is chosen some seconds before its service listens. So that two stacks that start together do not choose the same,
each choice is held by an abstract socket named after the port (Linux): the kernel gives it to one process of a network
namespace, and takes it back when that process ends.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
TRIES = 200


class Ports:
    """A port for each name, all different, kept from other stacks until `close`. Raises OSError if none is free."""

    def __init__(self, usual: Mapping[str, int]) -> None:
        self._held: list[socket.socket] = []
        self.of: dict[str, int] = {}
        for name, port in usual.items():
            self.of[name] = port if self._take(port) else self._other()

    def close(self) -> None:
        """Other stacks may have them."""
        for held in self._held:
            held.close()
        self._held.clear()

    def _other(self) -> int:
        for _ in range(TRIES):
            port = random.randint(LOWEST, HIGHEST)
            if self._take(port):
                return port
        raise OSError(f"no free port found from {LOWEST} to {HIGHEST}")

    def _take(self, port: int) -> bool:
        if port in self.of.values() or not is_free(port):
            return False
        holding = socket.socket(socket.AF_UNIX)
        try:
            holding.bind(f"\0headrace-port-{port}")
        except FileNotFoundError:  # no abstract sockets here
            holding.close()
        except OSError:
            holding.close()
            return False
        else:
            self._held.append(holding)
        return True


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
