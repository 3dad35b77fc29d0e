"""What both ends of the link share: its options, the addresses of a host, and what they tell people.

The link is one encrypted channel between the leader (a ROUTER, `leaderlink`) and the node supervisors (a DEALER each, `nodelink`),
made for one poll loop: nothing blocks, reads a clock or starts a thread. Register `sockets()`, call `receive(now)` after every poll
and at least once a second. CURVE hides the bytes; the ZAP socket, served in the same poll, lets in the run's node key alone. Events of
a node are kept until the leader has them on its disk, orders until the node has them; both survive broken connections, and events
also a new leader.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket as sockets_of_the_system

import psutil
import zmq

from ftsup.events import Noted
from ftsup.supervisor import wire
from ftsup.supervisor.door import HANDSHAKE_S

TICK_S = 1.0
PER_CALL = 4000
"""Messages read in one call: a flood must not keep the loop from its other work."""


def raise_file_limit() -> None:
    """As many open files as we may have: a leader has a connection for each node."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def own_addresses() -> list[str]:
    """IPv4 addresses of this host, loopback last."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        entry.address
        for name, entries in psutil.net_if_addrs().items()
        if name in up
        for entry in entries
        if entry.family == sockets_of_the_system.AF_INET and not ipaddress.ip_address(entry.address).is_loopback
    ]
    return [*dict.fromkeys(found), "127.0.0.1"]


class Talk:
    """What an end tells people: each thing once, and how often garbage came."""

    _CALM_S = 600.0
    """Trouble that did not show for so long is over."""

    def __init__(self) -> None:
        self.garbage = 0
        self._said: set[str] = set()
        self._notes: list[Noted] = []
        self._stands: dict[str, float] = {}
        """Kind of trouble -> when it last showed."""

    def say(self, text: str) -> None:
        """Something for people, once."""
        if text not in self._said and len(self._said) < 100:  # noqa: PLR2004 - a cap on memory, not a rule
            self._said.add(text)
            self._notes.append(Noted(text=text))

    def trouble(self, kind: str, text: str, now: float) -> None:
        """Something that goes on: told once, until it is over."""
        if kind not in self._stands:
            self._notes.append(Noted(text=text, trouble=kind))
        self._stands[kind] = now

    def calm(self, now: float) -> None:
        """What did not show for a while is over."""
        for kind in [kind for kind, shown_t in self._stands.items() if now - shown_t >= self._CALM_S]:
            self.over(kind, f"{kind} at the leader's port: none for {self._CALM_S / 60:g} minutes")

    def over(self, kind: str, text: str) -> None:
        """It goes on no more."""
        if self._stands.pop(kind, None) is not None:
            self._notes.append(Noted(text=text, trouble=kind, over=True))

    def drop(self, whose: str) -> None:
        """A message that makes no sense."""
        self.garbage += 1
        self.say(f"a message from {whose} is not one of ours: dropped (and counted from now on)")

    def take(self) -> list[Noted]:
        """What was said since the last call."""
        notes, self._notes = self._notes, []
        return notes


def common(socket: zmq.Socket[bytes]) -> None:
    """What both ends of the link want: dead connections are noticed, nothing lingers, no message is bigger than ours are."""
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, wire.MESSAGE_CAP)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 3000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10000)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_S * 1000)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
