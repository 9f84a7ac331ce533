"""The capacity of the local stack's datastore, leased by all of its jobs (capacity.md 13 and 16).

Theory: the coordinator is a thread of the process that runs the stack, so it lives exactly as long as the stack. It
keeps nothing: what a killed stack had granted has ended when it grants again, since it begins to learn at its own
start, and that is long over when Spark is ready. Who has the token in the folder may lease.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from headrace_capacity.coordinator import Coordinator

RESOURCE = "datastore"


def token_file(home: Path) -> Path:
    """Where the token is."""
    return home / "capacity" / "token"


def coordinate(home: Path, port: int) -> Coordinator:
    """Start a coordinator with a new token. Raises OSError if the port was taken."""
    token = secrets.token_urlsafe(32)
    coordinator = Coordinator(token, port=port)
    file = token_file(home)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(token)
    return coordinator.start()
