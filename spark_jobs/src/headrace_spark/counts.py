"""What is counted, and how it adds up.

For everything that the writer committed:
  records  = ticks + rejected + documents + documents_repeated
  members  = members_taken + members_rejected          (of documents; a repeated document counts in its own numbers)
  rows     = inserted + replaced + repeats + rows_refused + rows_postponed   (rows of the members taken)
  dead letters = rejected + members_rejected + letters of refused rows (one a member) = sum over the reasons
A record that comes back from the delayed retry topic is a record again, with the members and rows that were left of it;
`rounds` says how many of the records these are.
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
    "rows_postponed",
    "records_postponed",
    "requests",
    "retries",
    "cost",
    "charged",
    "microbatches",
    "offsets_lost",
)
GROUPS = ("dead_letters", "rounds")


class Counts(msgspec.Struct):
    """Numbers of one micro-batch or a sum of many; `cost` in capacity units, `charged` what the destination
    says that it took; `dead_letters` by reason; `rounds`: records from the retry topic, by how often they were
    there."""

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
    rows_postponed: int = 0
    records_postponed: int = 0
    requests: int = 0
    retries: int = 0
    cost: int = 0
    charged: int = 0
    microbatches: int = 0
    offsets_lost: int = 0
    dead_letters: dict[str, int] = {}
    rounds: dict[str, int] = {}

    def items(self) -> dict[str, int]:
        """Flat: every name, `dead_letters.<reason>` for each reason, and `rounds.<number>` for each round."""
        flat: dict[str, int] = {name: getattr(self, name) for name in NAMES}
        for name in GROUPS:
            flat.update({f"{name}.{label}": number for label, number in getattr(self, name).items()})
        return flat


def from_items(flat: dict[str, int]) -> Counts:
    """The inverse of `Counts.items`; names that are not there are 0."""
    groups: dict[str, dict[str, int]] = {group: {} for group in GROUPS}
    for name, number in flat.items():
        group, dot, label = name.partition(".")
        if dot and group in groups:
            groups[group][label] = number
    return Counts(**{name: flat.get(name, 0) for name in NAMES}, **groups)  # type: ignore[arg-type]
