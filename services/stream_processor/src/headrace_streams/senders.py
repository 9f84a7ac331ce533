"""How far the clocks of those who send commands are from the log's, by partition (timeline.md 12.2).

Of each sending instance the last 8 values of append time - `tl-sent-at` are kept; the least is nearest to the clocks'
difference, as the way to the log only adds to it. An instance counts once it has 8: one slow command says nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from headrace_core.stage import Record, header

VALUES = 8
MOST_INSTANCES = 64
SILENT_MS = 300_000
"""An instance that has sent nothing for so long, by the log's clock, is not there any more."""


class Senders:
    """The instances that send to one partition. All times are UTC ms."""

    def __init__(self) -> None:
        self._values: OrderedDict[bytes, deque[int]] = OrderedDict()
        self._heard_ms: dict[bytes, int] = {}

    def seen(self, records: Iterable[Record]) -> None:
        """Records of the log, in order. Those without sender or a readable time tell nothing."""
        for record in records:
            instance, sent = header(record.headers, "tl-instance"), header(record.headers, "tl-sent-at") or b""
            if instance and sent.isdigit() and len(sent) <= 15:
                values = self._values.setdefault(instance, deque(maxlen=VALUES))
                values.append(record.append_ms - int(sent))
                self._values.move_to_end(instance)
                self._heard_ms[instance] = record.append_ms
        while len(self._values) > MOST_INSTANCES:
            self._heard_ms.pop(self._values.popitem(last=False)[0])

    def offsets(self, now_ms: int) -> dict[str, int]:
        """Append time less the sender's, ms, by instance; `now_ms` is the log's clock."""
        return {
            instance.decode(errors="replace"): min(values)
            for instance, values in self._values.items()
            if len(values) == VALUES and now_ms - self._heard_ms[instance] < SILENT_MS
        }
