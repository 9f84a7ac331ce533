"""A row of connections that got nowhere is told from an unlucky one."""

from __future__ import annotations

from headrace_bridge.progress import MANY, SHORT_S, Progress


class Clock:
    """Seconds that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_many_short_connections_without_anything_settled_are_stuck() -> None:
    progress = Progress(Clock())
    for number in range(MANY):
        assert progress.stuck(5) == ""
        progress.connected(5)
        progress.lost("malformed_packet", 5)
        assert progress.in_a_row == number + 1
    assert progress.stuck(5) == "malformed_packet"
    assert progress.fruitless == {"malformed_packet": MANY}


def test_the_cause_is_that_of_the_last_one() -> None:
    progress = Progress(Clock())
    for cause in ("malformed_packet", "silence", "connection_lost"):
        progress.connected(0)
        progress.lost(cause, 0)
    assert progress.stuck(0) == "connection_lost"
    assert progress.fruitless.total() == MANY


def test_something_settled_or_time_ends_the_row_at_once() -> None:
    clock = Clock()
    for settled, seconds in ((1, 0.0), (0, SHORT_S)):
        progress = Progress(clock)
        for _ in range(MANY):
            progress.connected(0)
            progress.lost("silence", 0)
        progress.connected(0)
        assert progress.stuck(0) == "silence", "a connection alone is no progress"
        clock.now += seconds
        assert (progress.stuck(settled), progress.row(settled)) == ("", 0)
        progress.lost("silence", settled)
        assert (progress.stuck(settled), progress.in_a_row) == ("", 0)
        assert progress.fruitless.total() == MANY


def test_what_was_settled_before_the_connection_does_not_count() -> None:
    progress = Progress(Clock())
    for _ in range(MANY):
        progress.connected(1_000)
        progress.lost("silence", 1_000)
    assert progress.stuck(1_000) == "silence"
