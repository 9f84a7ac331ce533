"""The embedded default: a coordinator in a thread of any one process, and the store that talks to it (capacity.md 16).

    Coordinator (states in memory, own monotonic clock) <--TCP, token--> CoordinatorStore <-- owner

It keeps nothing: after a restart owners may still hold what an earlier coordinator granted, so it *learns* until
ttl + quarantine after its start and then grants under epochs above every earlier one (the generation is above the wall
clock's second). What was changed at run time, and a pause, it hears of from the owners that were told
(`config_change`); where none is left, the resource is what its next user provisions. `cold=True` says that no owner of
an earlier coordinator can be left, and skips the learning time.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from collections.abc import Callable

from headrace_capacity import wire
from headrace_core.capacity import lease_admin, lease_store
from headrace_core.capacity.errors import BatcherError, LeaseStoreUnavailable, UnknownResource
from headrace_core.capacity.lease_state import LeaseState, new_state
from headrace_core.capacity.protocol import LeaseReply, LeaseRequest, ResourceConfig, StoreStatus

NS_PER_MS = 1_000_000
MAX_CONNECTIONS = 1_000
PATIENCE_S = 10.0
"""A connection that has not shown the token by then is closed."""


def monotonic_ms() -> int:
    return time.monotonic_ns() // NS_PER_MS


class Coordinator:
    """Serves from `start()` to `stop()`. `port` 0: a free one. `delay`: called before each call is answered, for tests
    of a slow store. Raises ValueError for an empty token."""

    def __init__(
        self,
        token: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        cold: bool = False,
        clock_ms: Callable[[], int] = monotonic_ms,
        delay: Callable[[], None] = lambda: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        if not token:
            raise ValueError("the coordinator needs a token")
        self._token, self._patience_s = token, patience_s
        self._clock_ms, self._delay = clock_ms, delay
        self._started_ms, self._cold = clock_ms(), cold
        self._generation = int(time.time()) + 1
        self._lock = threading.Lock()
        self._states: dict[str, LeaseState] = {}
        self._links: set[socket.socket] = set()
        self._listener = socket.create_server((host, port), backlog=128)
        self.host, self.port = host, int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        """`tcp://host:port`."""
        return f"tcp://{self.host}:{self.port}"

    def start(self) -> Coordinator:
        threading.Thread(target=self._accept, name="headrace-coordinator", daemon=True).start()
        return self

    def stop(self) -> None:
        """Close the port and all connections; what was granted ends by itself."""
        _shut(self._listener)
        self.disconnect()

    def disconnect(self) -> None:
        """Close all connections; clients open new ones."""
        with self._lock:
            links = list(self._links)
        for link in links:
            _shut(link)

    def status(self, resource: str) -> StoreStatus:
        """For the process that embeds it. Raises `UnknownResource`."""
        with self._lock:
            return lease_admin.status(self._state(resource), self._clock_ms())

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                full = len(self._links) >= MAX_CONNECTIONS
                if not full:
                    self._links.add(link)
            if full:
                link.close()
                continue
            threading.Thread(target=self._serve, args=(link,), name="headrace-coordinator", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        channel = wire.Channel(link)
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first: float | None = time.monotonic() + self._patience_s
            while (call := channel.receive_call(first)) is not None:
                if not hmac.compare_digest(call.token.encode(), self._token.encode()):
                    channel.send(wire.Refused(wire.WRONG_TOKEN, "", "wrong token; it was started with another one"))
                    return
                first = None
                channel.send(self._answer(call))
        except (OSError, ValueError):  # the client is gone, or speaks something else: its connection ends, no other's
            return
        finally:
            with self._lock:
                self._links.discard(link)
            channel.close()

    def _answer(self, call: wire.Call) -> wire.Answer:
        self._delay()
        try:
            with self._lock:
                return self._decide(call)
        except BatcherError as error:
            return wire.refusal(error)

    def _decide(self, call: wire.Call) -> wire.Done:
        now_ms = self._clock_ms()
        match call:
            case wire.Provision(config=config):
                self._provision(config)
                return wire.Done()
            case wire.Sync(request=request):
                self._states[request.resource], reply = lease_store.sync(self._state(request.resource), request, now_ms)
                return wire.Done(reply=reply)
            case wire.Configure(resource=resource, changes=changes):
                self._states[resource] = lease_admin.configure(self._state(resource), changes, now_ms)
                return wire.Done(version=self._states[resource].config_version)
            case wire.Status(resource=resource):
                return wire.Done(status=lease_admin.status(self._state(resource), now_ms))

    def _provision(self, config: ResourceConfig) -> None:
        """As of the start: whoever held something of this resource before the start has lost it by then."""
        if config.resource not in self._states:
            self._states[config.resource] = new_state(
                config, self._started_ms, generation=self._generation, learning=not self._cold
            )

    def _state(self, resource: str) -> LeaseState:
        if resource not in self._states:
            raise UnknownResource(resource)
        return self._states[resource]


def _shut(link: socket.socket) -> None:
    """Shutdown wakes the thread that waits in accept or recv; close alone does not."""
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)
    link.close()


class CoordinatorStore:
    """`LeaseStore` at `address` (`tcp://host:port`). Calls of several threads wait for each other.

    A forked child must make its own. Raises ValueError for an address that is none.
    """

    durable = False

    def __init__(self, address: str, token: str, *, call_timeout_ms: int = 2_000) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"an address is tcp://host:port, not {address!r}")
        self._host, self._port = host.strip("[]"), int(port)
        self._token, self._timeout_ms = token, call_timeout_ms
        self._guard = threading.Lock()
        self._channel: wire.Channel | None = None

    def provision(self, resource: ResourceConfig) -> None:
        self._call(wire.Provision(self._token, resource), self._timeout_ms)

    def sync(self, request: LeaseRequest, timeout_ms: int = 2_000) -> LeaseReply:
        reply = self._call(wire.Sync(self._token, request), timeout_ms).reply
        if reply is None:
            raise LeaseStoreUnavailable("the coordinator answered something else")
        return reply

    def configure(self, resource: str, **changes: object) -> int:
        return self._call(wire.Configure(self._token, resource, changes), self._timeout_ms).version

    def status(self, resource: str) -> StoreStatus:
        status = self._call(wire.Status(self._token, resource), self._timeout_ms).status
        if status is None:
            raise LeaseStoreUnavailable("the coordinator answered something else")
        return status

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        with self._guard:
            self._drop()

    def _call(self, call: wire.Call, timeout_ms: int) -> wire.Done:
        deadline_s = time.monotonic() + timeout_ms / 1000
        if not self._guard.acquire(timeout=timeout_ms / 1000):
            raise LeaseStoreUnavailable("another call to the coordinator did not end in time")
        try:
            channel = self._opened(deadline_s)
            channel.send(call, deadline_s)
            answer = channel.receive_answer(deadline_s)
            if isinstance(answer, wire.Refused) and answer.code == wire.WRONG_TOKEN:
                self._drop()
        except (OSError, ValueError) as error:
            self._drop()
            raise LeaseStoreUnavailable(f"the coordinator at tcp://{self._host}:{self._port}: {error}") from error
        finally:
            self._guard.release()
        if isinstance(answer, wire.Refused):
            raise wire.raised(answer, f"tcp://{self._host}:{self._port}")
        return answer

    def _opened(self, deadline_s: float) -> wire.Channel:
        if self._channel is None:
            left_s = max(0.001, deadline_s - time.monotonic())
            link = socket.create_connection((self._host, self._port), timeout=left_s)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._channel = wire.Channel(link)
        return self._channel

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
