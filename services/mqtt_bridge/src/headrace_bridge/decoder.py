"""Where packets begin and end in what a socket gives, in one pass: sans-I/O (bridge.md 3).

`Decoder.feed` takes what a socket read gave, `Decoder.take` gives at most so many packets: what is not taken stays in
the decoder, where `held` tells its size. A PUBLISH longer than `keep_bytes` is not held either: its first bytes are
kept, the rest is counted and dropped as it arrives.

Nearly all packets are a PUBLISH with QoS 1 or 2, no properties and less than 16 KiB: `take` reads those itself, without
a call for each (that halves what a message costs). All others, and all that look odd, go through `packets.decode`.
"""

from __future__ import annotations

from headrace_bridge.packets import LONGEST_LENGTH, PUBLISH, MalformedPacket, Packet, Publish, decode

KEEP_BYTES = 16 * 1024 * 1024
START_BYTES = 24  # of a malformed packet, for who looks for it
PUBLISH_BITS, QOS_BITS = 0xF0, 6
new_tuple = tuple.__new__


class Decoder:
    """Bytes in any pieces to packets. One object for one connection."""

    def __init__(self, *, v5: bool, keep_bytes: int = KEEP_BYTES) -> None:
        self._v5 = v5
        self._keep = keep_bytes
        self._buffer = b""
        self._at = 0
        self._chunks: list[bytes] = []
        self._fed = 0  # bytes in the chunks
        self._need = 2  # so many from `_at` on are needed before the next packet can be complete
        self._long: Publish | None = None
        self._skip = 0
        self._broken: MalformedPacket | None = None

    @property
    def held(self) -> int:
        """Bytes that are not taken yet."""
        return len(self._buffer) - self._at + self._fed

    @property
    def starved(self) -> bool:
        """Whether no packet is complete, as far as `take` has looked."""
        return self.held < self._need

    def feed(self, data: bytes) -> None:
        """Add what was read."""
        if self._skip:
            dropped = min(self._skip, len(data))
            self._skip -= dropped
            data = data[dropped:]
        if data:
            self._chunks.append(data)
            self._fed += len(data)

    def take(self, limit: int) -> list[Packet]:
        """Up to `limit` complete packets, in order; those before a malformed one are not lost.

        Raises MalformedPacket when nothing can be taken before it; `check` raises it as well.
        """
        self.check()
        taken: list[Packet] = []
        if self._skip:
            return taken
        if self._long is not None:
            taken.append(self._long)
            self._long = None
        try:
            while self.held >= self._need and len(taken) < limit:
                if len(self._buffer) - self._at < self._need:
                    self._join()
                self._read(taken, limit)
        except MalformedPacket as error:
            error.start = self._buffer[self._at : self._at + START_BYTES]
            self._broken = error
            if not taken:
                raise
        return taken

    def check(self) -> None:
        """Raises MalformedPacket if one was found behind the packets that were taken."""
        if self._broken is not None:
            raise self._broken

    def _join(self) -> None:
        self._buffer = b"".join((self._buffer[self._at :], *self._chunks))
        self._at = self._fed = 0
        self._chunks = []

    def _read(self, taken: list[Packet], limit: int) -> None:
        """Packets of the buffer, until it has no whole one any more or `limit` is reached."""
        buffer, at, end = self._buffer, self._at, len(self._buffer)
        extra = 3 if self._v5 else 2  # after the topic: packet id, in version 5 the length of the properties
        append, keep = taken.append, self._keep
        left = limit - len(taken)
        try:
            while left and end - at >= 6:
                head = buffer[at]
                length = buffer[at + 1]
                start = at + 2
                if length > 127:
                    if buffer[start] > 127:
                        break
                    length += (buffer[start] << 7) - 128
                    start += 1
                stop = start + length
                if stop > end or length > keep or head & PUBLISH_BITS != 0x30 or not head & QOS_BITS:
                    break
                middle = start + 2 + (buffer[start] << 8 | buffer[start + 1])
                payload = middle + extra
                if payload > stop or (extra == 3 and buffer[middle + 2]) or head & QOS_BITS == QOS_BITS:
                    break
                packet_id = buffer[middle] << 8 | buffer[middle + 1]
                if not packet_id:
                    break
                append(
                    new_tuple(
                        Publish,
                        (
                            buffer[start + 2 : middle], buffer[payload:stop], head >> 1 & 3, head & 1 == 1,
                            head & 8 == 8, packet_id, (), 0, False,
                        ),
                    )
                )  # fmt: skip
                at = stop
                left -= 1
        finally:
            self._at = at
            self._need = 2
        if left and (packet := self._next()) is not None:
            append(packet)

    def _next(self) -> Packet | None:
        """Any packet; None if it is not complete."""
        buffer, at = self._buffer, self._at
        length = multiplier = 0
        start = at + 1
        while True:
            if start >= len(buffer):
                self._need = start - at + 1
                return None
            if start - at > LONGEST_LENGTH:
                raise MalformedPacket("the remaining length has more than four bytes")
            digit = buffer[start]
            start += 1
            length |= (digit & 127) << multiplier
            if digit < 128:
                break
            multiplier += 7
        head = buffer[at]
        if length > self._keep and head >> 4 != PUBLISH:
            raise MalformedPacket(f"a packet of kind {head >> 4} with {length} bytes")
        kept = min(length, self._keep)
        if len(buffer) < start + kept:
            self._need = start + kept - at
            return None
        packet = decode(head, buffer[start : start + kept], length - kept, v5=self._v5)
        self._at = start + kept
        return self._hold(packet) if isinstance(packet, Publish) and packet.missing else packet

    def _hold(self, publish: Publish) -> Publish | None:
        """A PUBLISH whose end is to be dropped: given when the end has passed by."""
        there = self.held
        if there >= publish.missing:
            self._join()
            self._at = publish.missing
            return publish
        self._skip = publish.missing - there
        self._long = publish
        self._buffer, self._at, self._chunks, self._fed = b"", 0, [], 0
        return None
