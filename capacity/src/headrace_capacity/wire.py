"""What coordinator and clients say to each other over TCP: one frame a call, one frame an answer.

    frame = length (4 bytes, big-endian) + JSON;   call = {token, name, ...};   answer = {result} or {error, ...}

The token is a shared secret that keeps strangers out, not encryption: run it on loopback or a private network.
"""

from __future__ import annotations

import socket
import time
from typing import Any, TypeVar

import msgspec

from headrace_core.capacity.errors import (
    BatcherError,
    CapacityConfig,
    LeaseStoreUnavailable,
    PartitionsOutOfRange,
    UnknownResource,
)
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest, ResourceConfig, StoreStatus

MAX_FRAME = 4 << 20
"""Bytes; a call for 500 partitions has about 20 KiB."""


WRONG_TOKEN = "WrongToken"
"""After this answer the coordinator closes the connection."""


class Provision(msgspec.Struct, frozen=True, tag=True):
    token: str
    config: ResourceConfig


class Sync(msgspec.Struct, frozen=True, tag=True):
    token: str
    request: LeaseRequest


class Configure(msgspec.Struct, frozen=True, tag=True):
    token: str
    resource: str
    changes: dict[str, Any]


class Status(msgspec.Struct, frozen=True, tag=True):
    token: str
    resource: str


class Done(msgspec.Struct, frozen=True, tag=True):
    reply: LeaseReply | None = None
    version: int = 0
    status: StoreStatus | None = None


class Refused(msgspec.Struct, frozen=True, tag=True):
    """`code`: the error's stable code; `subject`: the resource or the key that it names."""

    code: str
    subject: str
    detail: str


Call = Provision | Sync | Configure | Status
Answer = Done | Refused
Message = TypeVar("Message")

_encoder = msgspec.json.Encoder()
_calls: msgspec.json.Decoder[Call] = msgspec.json.Decoder(Call)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


class Channel:
    """A socket that speaks in frames. `deadline_s` is on the monotonic clock; None waits for as long as it takes."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def send(self, message: Call | Answer, deadline_s: float | None = None) -> None:
        """Raises OSError."""
        body = _encoder.encode(message)
        self._limit(deadline_s)
        self._link.sendall(len(body).to_bytes(4) + body)

    def receive_call(self, deadline_s: float | None) -> Call | None:
        """The next call; None at the end. Raises OSError, ValueError for what is none."""
        body = self._receive(deadline_s)
        return None if body is None else _decoded(_calls, body)

    def receive_answer(self, deadline_s: float) -> Answer:
        """Raises OSError, also at the end; ValueError for what is no answer."""
        body = self._receive(deadline_s)
        if body is None:
            raise ConnectionResetError("the coordinator closed the connection")
        return _decoded(_answers, body)

    def close(self) -> None:
        self._link.close()

    def _receive(self, deadline_s: float | None) -> bytes | None:
        head = self._read(4, deadline_s)
        if not head:
            return None
        length = int.from_bytes(head)
        if length > MAX_FRAME:
            raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME}")
        return self._read(length, deadline_s)

    def _read(self, length: int, deadline_s: float | None) -> bytes:
        """Exactly so many bytes, or none at the end of the stream."""
        parts, missing = [], length
        while missing:
            self._limit(deadline_s)
            part = self._link.recv(min(missing, 1 << 16))
            if not part:
                if missing == length:
                    return b""
                raise ConnectionResetError("the connection ended inside a frame")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _limit(self, deadline_s: float | None) -> None:
        if deadline_s is None:
            self._link.settimeout(None)
            return
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the coordinator did not answer in time")
        self._link.settimeout(left_s)


def _decoded(decoder: msgspec.json.Decoder[Message], body: bytes) -> Message:
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a frame of this protocol: {error}") from error


def refusal(error: BatcherError) -> Refused:
    """An error of the protocol as an answer."""
    match error:
        case UnknownResource():
            return Refused(error.code, error.resource, str(error))
        case CapacityConfig():
            return Refused(error.code, error.field, str(error).removeprefix(f"{error.field}: "))
        case _:
            return Refused(error.code, "", str(error))


def raised(answer: Refused, address: str) -> BatcherError:
    """The reverse of `refusal`, of the coordinator at `address`."""
    match answer.code:
        case "UnknownResource":
            return UnknownResource(answer.subject)
        case "PartitionsOutOfRange":
            return PartitionsOutOfRange(answer.subject, answer.detail)
        case "CapacityConfig":
            return CapacityConfig(answer.subject, answer.detail)
        case _:
            return LeaseStoreUnavailable(f"the coordinator at {address} refused: {answer.detail}")
