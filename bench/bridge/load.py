"""`python -m bench.bridge.load PORT COUNT`: publishes 150-byte messages with QoS 1 as fast as the broker takes them.

At most 20 are without acknowledgement, as mosquitto wants it by default. A process of its own, so that it takes no time
from what is measured but the machine's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from headrace_bridge import packets

TOPIC, PAYLOAD = b"te/device/child01///m/temperature", b"x" * 150
WINDOW, ACK_BYTES = 20, 4


def publish(port: int, count: int, topics: Sequence[bytes] = (TOPIC,)) -> None:
    """Publish `count` messages to the topics in turns; returns when all are acknowledged."""
    sock = socket.create_connection(("127.0.0.1", port))
    greeting = packets.connect(
        f"load-{os.getpid()}", v5=False, keep_alive_s=600, session_expiry_s=0, receive_maximum=WINDOW
    )  # fmt: skip
    sock.sendall(greeting)
    sock.recv(4)
    sent = answered = 0
    while answered < count * ACK_BYTES:
        more = min(WINDOW - (sent - answered // ACK_BYTES), count - sent)
        if more:
            ids = range(sent, sent + more)
            sock.sendall(
                b"".join(
                    packets.publish(topics[i % len(topics)], PAYLOAD, i % 60_000 + 1, retain=False, v5=False)
                    for i in ids
                )
            )
            sent += more
        answered += len(sock.recv(65_536))
    sock.sendall(packets.DISCONNECT_BYTES)
    sock.close()


def start(port: int, count: int) -> subprocess.Popen[bytes]:
    """The same in a process."""
    return subprocess.Popen([sys.executable, "-m", "bench.bridge.load", str(port), str(count)])


if __name__ == "__main__":
    publish(int(sys.argv[1]), int(sys.argv[2]))
