"""Measurements of a lane into batches of at most `max` (packing.md)."""

from headrace_core.packing.ids import batch_id, shuffled_batch_id, shuffled_lane, subject_of
from headrace_core.packing.lane import Lane, LaneState
from headrace_core.packing.packer import UNTIMED, pack
from headrace_core.packing.settings import PackingSettings

__all__ = [
    "UNTIMED",
    "Lane",
    "LaneState",
    "PackingSettings",
    "batch_id",
    "pack",
    "shuffled_batch_id",
    "shuffled_lane",
    "subject_of",
]
