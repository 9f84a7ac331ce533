"""HTTP/1.1 as uvicorn speaks it, but what is not HTTP at all is answered with a problem document, too."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace_api import problems
from headrace_core.registration.message import write_json


class ProblemProtocol(H11Protocol):
    """One connection."""

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that h11 cannot read, and close."""
        body = write_json(problems.document(400, "invalid_request", msg, ""))
        headers = [
            (b"content-type", problems.MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()
