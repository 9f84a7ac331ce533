"""The terminal's death reaches a program whose session leader does not end."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

from headrace.supervisor import wait_for

PROGRAM = """
import sys, time
from pathlib import Path
from headrace.signals import Interrupted, interruptible
said = Path(sys.argv[1])
try:
    with interruptible():
        said.write_text("up")
        time.sleep(60)
except Interrupted as told:
    said.write_text(str(told))
"""


def test_the_death_of_the_terminal_is_noticed_behind_a_leader_that_waits(tmp_path: Path) -> None:
    said = tmp_path / "said"
    leader, terminal = pty.fork()
    if leader == 0:  # a shell that ignores SIGHUP and waits, as make does
        script = 'trap \'\' HUP; "$0" -c "$1" "$2"; true'
        os.execvp("sh", ["sh", "-c", script, sys.executable, PROGRAM, str(said)])
    assert wait_for(lambda: said.exists() and said.read_text() == "up", 150)
    os.close(terminal)
    assert wait_for(lambda: said.read_text() == "SIGHUP", 150)
    os.waitpid(leader, 0)
