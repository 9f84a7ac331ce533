"""Which port a service gets: its usual one, or a free one below the range of outgoing connections.

A port is chosen some seconds before its service listens. So that two stacks that start together do not choose the same,
each choice is held by an abstract socket named after the port (Linux): the kernel gives it to one process of a network
namespace, and takes it back when that process ends.
"""

from __future__ import annotations

import random
import socket
from collections import deque
from collections.abc import Mapping
from typing import Literal

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
        held = _hold(port)
        if held:
            self._held.append(held)
        return held is not False


KEPT = 100
_chosen: deque[tuple[int, socket.socket | None]] = deque()
"""Of `free_port`, the last `KEPT`, and what holds them: the server of an older one listens by now, or never will."""


def free_port() -> int:
    """A port of the loopback address that nobody listens on or has just chosen. Raises OSError if none is found.

    Below the range of outgoing connections: a port of that range can be taken by any of them before its server
    listens; and a client that tries again and again while the server is away gets that port as its own one day, is
    connected to itself, and keeps the server from coming back.
    """
    for _ in range(TRIES):
        port = random.SystemRandom().randint(LOWEST, HIGHEST)
        if is_free(port) and port not in dict(_chosen) and (held := _hold(port)) is not False:
            _chosen.append((port, held))
            if len(_chosen) > KEPT and (oldest := _chosen.popleft()[1]):
                oldest.close()
            return port
    raise OSError(f"no free port found from {LOWEST} to {HIGHEST}")


def _hold(port: int) -> socket.socket | Literal[False] | None:
    """What keeps a port from others that choose one; None without abstract sockets, False if another one has it."""
    holding = socket.socket(socket.AF_UNIX)
    try:
        holding.bind(f"\0headrace-port-{port}")
    except FileNotFoundError:
        holding.close()
        return None
    except OSError:
        holding.close()
        return False
    return holding


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
