"""What is counted, and how it adds up.

For everything that the writer committed:
  records  = ticks + rejected + documents + documents_repeated
  members  = members_taken + members_rejected          (of documents; a repeated document counts in its own numbers)
  rows     = inserted + replaced + repeats + rows_refused   (rows of the members taken)
  dead letters = rejected + members_rejected + letters of refused rows (one a member) = sum over the reasons
"""

from __future__ import annotations

import msgspec

NAMES = (
    "records",
    "ticks",
    "rejected",
    "documents",
    "documents_repeated",
    "members",
    "members_taken",
    "members_rejected",
    "members_repeated",
    "members_empty",
    "text_leaves_dropped",
    "rows",
    "inserted",
    "replaced",
    "repeats",
    "rows_refused",
    "requests",
    "retries",
    "cost",
    "microbatches",
    "offsets_lost",
)


class Counts(msgspec.Struct):
    """Numbers of one micro-batch or a sum of many; `cost` in capacity units; `dead_letters` by reason."""

    records: int = 0
    ticks: int = 0
    rejected: int = 0
    documents: int = 0
    documents_repeated: int = 0
    members: int = 0
    members_taken: int = 0
    members_rejected: int = 0
    members_repeated: int = 0
    members_empty: int = 0
    text_leaves_dropped: int = 0
    rows: int = 0
    inserted: int = 0
    replaced: int = 0
    repeats: int = 0
    rows_refused: int = 0
    requests: int = 0
    retries: int = 0
    cost: int = 0
    microbatches: int = 0
    offsets_lost: int = 0
    dead_letters: dict[str, int] = {}

    def items(self) -> dict[str, int]:
        """Flat: every name, and `dead_letters.<reason>` for each reason."""
        flat: dict[str, int] = {name: getattr(self, name) for name in NAMES}
        flat.update({f"dead_letters.{reason}": number for reason, number in self.dead_letters.items()})
        return flat


def from_items(flat: dict[str, int]) -> Counts:
    """The inverse of `Counts.items`; names that are not there are 0."""
    prefix = "dead_letters."
    reasons = {name[len(prefix) :]: number for name, number in flat.items() if name.startswith(prefix)}
    return Counts(**{name: flat.get(name, 0) for name in NAMES}, dead_letters=reasons)
