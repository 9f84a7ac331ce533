"""Delayed, scheduled and leased messages (`timeline.md`)."""
