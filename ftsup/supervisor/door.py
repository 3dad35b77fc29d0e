"""The port that nodes come to, and with them whoever shares the network: who comes is counted, a crowd that proves nothing is shut out.

CURVE and ZAP refuse strangers one by one, within HANDSHAKE_S; nothing but this keeps them from taking all the files that we may open.
Where the kernel lets us shut it, those who are in stay in. It knows connections, and nothing of what is said on them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Collection

import zmq
from zmq.utils.monitor import parse_monitor_message

HANDSHAKE_S = 10
ROOM = 64
"""Connections in a round that may prove nothing, beside those that nodes have on their way."""
BUSY_S = 5.0
"""A port of our predecessor's is free as soon as that is dead: one that is still taken after so long is somebody else's."""
_PER_LOOK = 4000
_BACKLOG = 128
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


class _Instruction(ctypes.Structure):
    """One of a socket filter (linux/filter.h)."""

    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class Door:
    """Of one ROUTER. Register `monitor`, call `look(now)` after every poll and at least once a second."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], *, port: int, nodes: int) -> None:
        self.port = port
        """The port, or the one that is waited for."""
        self.strangers = 0
        """Connections that ended, or were ended by HANDSHAKE_S, before a message came through them: that takes the run's key."""
        self.crowded = False
        """More came in this round than there is room for."""
        self._shut = False
        self._router = router
        self._room = ROOM + 4 * nodes  # a node tries all addresses of ours at once
        self._listener: socket.socket | None = None
        self._unproven: set[int] = set()
        self._busy_t: float | None = None
        """When the port was first seen to be taken."""
        self._spent, self._round_t = 0, -1e9
        router.monitor("inproc://door", _EVENTS)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.linger = 0
        self.monitor.rcvhwm = 0  # a full one would stop zmq's own thread
        self.monitor.connect("inproc://door")

    @property
    def bound(self) -> bool:
        """Whether the port is ours."""
        return self._listener is not None

    def find(self, now: float) -> int | None:
        """Take the port that is waited for, or after a while any other: then the one that was given up."""
        self._busy_t = now if self._busy_t is None else self._busy_t
        given_up = self.port if now - self._busy_t >= BUSY_S else None
        if self.bind() or given_up is None:
            return None
        self.port = 0
        return given_up if self.bind() else None

    def bind(self) -> bool:
        """Take the port; False: somebody has it."""
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", self.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        listener.settimeout(0)
        self.port = listener.getsockname()[1]
        self._router.setsockopt(zmq.USE_FD, os.dup(listener.fileno()))
        self._router.bind(f"tcp://*:{self.port}")
        self._listener = listener
        return True

    def look(self, now: float, *, heard: Collection[int]) -> None:
        """Count who came; shut out a crowd until its round is over. `heard`: the connections that messages came through."""
        if now - self._round_t >= HANDSHAKE_S:
            self._round_t, self._spent, self.crowded = now, 0, False
            self._close(shut=False)
        for _ in range(_PER_LOOK):
            try:
                event = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
            fd = event["value"]
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._unproven.add(fd)
                self._spent += 1
            elif fd in self._unproven and fd not in heard:
                self._unproven.remove(fd)
                self.strangers += 1
        proven = self._unproven.intersection(heard)
        self._unproven -= proven
        self._spent -= len(proven)
        if self._spent > self._room:
            self.crowded = True
            self._close(shut=True)

    def close(self) -> None:
        """The port is anybody's again."""
        self._router.disable_monitor()
        self.monitor.close(linger=0)
        if self._listener:
            self._listener.close()

    def _close(self, *, shut: bool) -> None:
        """By a filter that drops every packet to the listening socket; closing it would end those who are in."""
        if shut == self._shut or self._listener is None:
            return
        drop_all = _Instruction(code=0x06, jt=0, jf=0, k=0)
        program = struct.pack("HP", 1, ctypes.addressof(drop_all))
        with contextlib.suppress(OSError):  # new kernels (seen: 6.18) let only root do it: then handshakes end by HANDSHAKE_S, all the same
            if shut:
                self._listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
            else:
                self._listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
            self._shut = shut
