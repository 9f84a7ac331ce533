"""A job of the picture: `python -m bench.capacity.worker ADDRESS FILE` spends what it gets until it is ended.

Lines of FILE: `sent NS UNITS` for each dispatch, `held NS UNITS` every 50 ms.
"""

from __future__ import annotations

import os
import sys
import time

from bench.capacity.owners import Owner, shared
from headrace_capacity.coordinator import CoordinatorStore

CAPACITY, FACTOR, COST = 2_000, 100, 20
TOKEN = "bench"


def main(address: str, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    resource = shared(CoordinatorStore(address, TOKEN), "picture", CAPACITY, FACTOR)
    owner = Owner(resource, COST).start()
    owner.wants.set()
    told = 0
    while True:
        lines = [f"held {time.monotonic_ns()} {resource.capacity}\n"]
        sent = owner.sent[told:]
        told += len(sent)
        lines += [f"sent {at} {units}\n" for at, units in sent]
        os.write(file, "".join(lines).encode())
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
