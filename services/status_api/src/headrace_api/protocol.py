"""HTTP/1.1 as uvicorn speaks it, with limits of time, and problem documents for what is not HTTP at all.

A client that opens a connection and says nothing, or its request drop by drop, or does not read its answer, holds a
connection for a limited time only. uvicorn itself limits the time between two requests.

    waiting for a request -> reading its head -> reading its body -> answering -> waiting ...
       HEAD_S together: '----------------------'     BODY_S     no write that stays for STUCK_S
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace_api import problems
from headrace_core.registration.message import write_json

HEAD_S, BODY_S, STUCK_S = 10.0, 60.0, 30.0


class ProblemProtocol(H11Protocol):
    """One connection."""

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that h11 cannot read, and close."""
        self.refuse(400, b"Bad Request", "invalid_request", msg)

    def refuse(self, status: int, phrase: bytes, reason: str, words: str) -> None:
        """Answer without the application, and close."""
        body = write_json(problems.document(status, reason, words, "/"))
        headers = [
            (b"content-type", problems.MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=phrase),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()


class TimedProtocol(ProblemProtocol):
    """One connection, with the limits of this module."""

    _reading: asyncio.TimerHandle | None = None
    _what: object = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """asyncio: the connection is there."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have come."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """uvicorn: an answer has been sent."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: it is over."""
        self._end(self._reading)
        self._end(self._writing)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """asyncio: the client does not read as fast as we write."""
        super().pause_writing()
        self._end(self._writing)
        self._writing = self.loop.call_later(STUCK_S, self.transport.abort)

    def resume_writing(self) -> None:
        """asyncio: it has read."""
        self._end(self._writing)
        self._writing = None
        super().resume_writing()

    def _watch(self) -> None:
        """A timer for what the client has to send now; one that runs for the same thing goes on."""
        state = self.conn.their_state
        what = (state, self.cycle) if state in (h11.IDLE, h11.SEND_BODY) else None
        if what == self._what:
            return
        self._end(self._reading)
        self._what, self._reading = what, None
        if what is not None:
            seconds = BODY_S if state is h11.SEND_BODY else HEAD_S
            self._reading = self.loop.call_later(seconds, self._too_slow)

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.refuse(408, b"Request Timeout", "timeout", "the request did not come in time")
        else:
            self.transport.abort()

    @staticmethod
    def _end(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()
