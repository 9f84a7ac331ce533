"""Which port a service gets: its usual one, or a free one below the range of outgoing connections."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
TRIES = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose(usual: Mapping[str, int]) -> dict[str, int]:
    """A port for each name, all different. Raises OSError if none is free."""
    chosen: dict[str, int] = {}
    for name, port in usual.items():
        chosen[name] = port if port not in chosen.values() and is_free(port) else _other(set(chosen.values()))
    return chosen


def _other(taken: set[int]) -> int:
    for _ in range(TRIES):
        port = random.randint(LOWEST, HIGHEST)
        if port not in taken and is_free(port):
            return port
    raise OSError(f"no free port found from {LOWEST} to {HIGHEST}")
