"""Measurements of a lane into batches of at most `max` (packing.md).

| packing.md | module | what it decides |
|---|---|---|
| 1 terms: ids; 6.2 lane by shuffle; 7.1 batch ids | `ids.py` | subject of an id; lane of a subject; name of a batch |
| 2 invariants, 3 algorithm, 4 example | `packer.py` | steps 1 to 6 for each time, and the flush |
| 5 cost | `subjects.py`, `packer.py` | subjects as numbers; sorts and runs instead of loops over rows |
| 6.4 modes, 6.5 late, 7 metrics | `lane.py` | which times are closed; the open batch; what is counted |
| 7 settings | `settings.py` | defaults and what is wrong with them |

Sending, failure and resend (7.2 to 7.5) and lanes in Spark (6.1 to 6.3) are the Spark writer's, not decided here.
"""

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
