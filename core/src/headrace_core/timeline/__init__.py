"""Messages ordered by a time that can still change: delay, schedule, lease (timeline.md)."""
