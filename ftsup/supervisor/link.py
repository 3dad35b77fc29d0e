"""The link: one encrypted channel between the leader (a ROUTER) and the node supervisors (a DEALER each), made for one poll loop.

Nothing here blocks, reads a clock or starts a thread: register `sockets()`, call `receive(now)` after every poll and at least
once a second. CURVE hides the bytes; the ZAP socket, served in the same poll, lets in the run's node key alone. Events of a
node are kept until the leader has them on its disk, orders until the node has them; both survive broken connections, and
events also a new leader.
"""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket as sockets_of_the_system
from collections import deque
from collections.abc import Sequence
from importlib.metadata import version

import msgspec
import psutil
import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from ftsup.events import NodeEvent, NodeOrder, NodeUp, Progressed
from ftsup.supervisor import wire
from ftsup.supervisor.keys import Keys
from ftsup.supervisor.wire import Counter, Inbox, Outbox

__all__ = ["Heard", "LeaderLink", "NodeLink", "own_addresses", "raise_file_limit"]

TICK_S = 1.0
RETRY_S = 10.0
"""A node that hears nothing for so long tries all addresses again."""
_PER_CALL = 4000
"""Messages read in one call: a flood must not keep the loop from its other work."""
_DOMAIN = b"ftsup"
_ZAP = "inproc://zeromq.zap.01"
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH

_TO_LEADER = msgspec.msgpack.Decoder(wire.ToLeader)
_TO_NODE = msgspec.msgpack.Decoder(wire.ToNode)
_UP = msgspec.msgpack.Decoder(NodeUp)
_EVENT = msgspec.msgpack.Decoder(NodeEvent)
_ORDER = msgspec.msgpack.Decoder(NodeOrder)


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What a node said: its NodeUp when this leader meets it, then its events in their order."""

    node: str
    instance: str
    events: tuple[NodeEvent, ...]


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


class _Talk:
    """What both ends tell people: each thing once, and how often garbage came."""

    def __init__(self) -> None:
        self.garbage = 0
        self._said: set[str] = set()
        self._notes: list[str] = []

    def say(self, text: str) -> None:
        if text not in self._said and len(self._said) < 100:  # noqa: PLR2004 - a cap on memory, not a rule
            self._said.add(text)
            self._notes.append(text)

    def drop(self, whose: str) -> None:
        self.garbage += 1
        self.say(f"a message from {whose} is not one of ours: dropped (and counted from now on)")

    def take(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes


# The leader's end ---------------------------------------------------------------------------------------------------------


class _Peer:
    """One instance of a node supervisor, as the leader knows it."""

    def __init__(self, node: str, instance: str, *, last: int | None, outbox: Outbox) -> None:
        self.node = node
        self.instance = instance
        self.inbox = Inbox(last)
        self.outbox = outbox
        self.acked = last or 0
        self.identities: deque[bytes] = deque()
        self.greeted = False


class LeaderLink:
    """The leader's end. `instance` names this leader; a node that hears another name says hello and repeats what was not acknowledged."""

    def __init__(self, keys: Keys, *, instance: str, port: int = 0, seen: dict[tuple[str, str], int] | None = None) -> None:
        raise_file_limit()
        self.instance = instance
        self.heard_at: dict[str, float] = {}
        """Node -> when it was last heard."""
        self.counters: dict[str, tuple[Counter, ...]] = {}
        """Node -> its last answer to `ask_counters`."""
        self._talk = _Talk()
        self._peers: dict[str, _Peer] = {}
        self._waiting: dict[str, Outbox] = {}
        self._by_identity: dict[bytes, _Peer] = {}
        self._seen = dict(seen or {})
        self._looked_at = -1e9
        self._port = port
        self._allowed = z85.decode(keys.node_public)
        self._context = zmq.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind(_ZAP)  # before the ROUTER: where nobody listens, everybody is let in
        self._router = self._context.socket(zmq.ROUTER)
        _common(self._router)
        self._router.router_mandatory = 1
        self._router.curve_server = 1
        self._router.curve_secretkey = keys.leader_secret.encode()
        self._router.zap_domain = _DOMAIN
        self._router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._router.sndhwm = 100
        self._router.rcvhwm = 1000
        self._bound = False
        self._bind()

    @property
    def bound(self) -> bool:
        """Whether nodes can reach us: a port that our predecessor still holds is tried again by `receive`."""
        return self._bound

    @property
    def port(self) -> int:
        """The port, or the one that is waited for."""
        return self._port

    @property
    def addresses(self) -> list[str]:
        """What nodes are told: all of them, since only they can know which one reaches us."""
        return [f"tcp://{address}:{self._port}" for address in own_addresses()]

    @property
    def garbage(self) -> int:
        """Messages that were dropped."""
        return self._talk.garbage

    @property
    def seen(self) -> dict[tuple[str, str], int]:
        """(node, instance) -> the last event taken."""
        return self._seen | {(peer.node, peer.instance): peer.inbox.last for peer in self._peers.values() if peer.inbox.last is not None}

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for reading."""
        return [self._router, self._zap]

    def notes(self) -> list[str]:
        """What people should know about the link; each thing once."""
        return self._talk.take()

    def quiet_s(self, node: str, now: float) -> float | None:
        """How long nothing came from a node; None: nothing ever came."""
        at = self.heard_at.get(node)
        return None if at is None else now - at

    def forget_time(self, now: float) -> None:
        """We were away: silence before now proves nothing."""
        for node in self.heard_at:
            self.heard_at[node] = now

    def receive(self, now: float) -> list[Heard]:
        """Everything that came. Events count as taken, but the nodes keep them until `ack`."""
        if not self._bound:
            self._bind()
        self._serve_zap()
        found: list[Heard] = []
        owed: dict[str, _Peer] = {}
        for _ in range(_PER_CALL):
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            peer = self._handle(identity, b"".join(frames), now, found)
            if peer is not None:
                owed[peer.node] = peer
        self._serve_zap()
        if now - self._looked_at >= TICK_S:  # not with every message: there may be a thousand nodes
            self._looked_at = now
            owed |= {peer.node: peer for peer in self._peers.values() if (due := peer.outbox.due_at()) is not None and due <= now}
        for peer in owed.values():
            self._tell(peer, now)
        return found

    def send(self, node: str, orders: Sequence[NodeOrder], now: float) -> None:
        """Orders for a node, kept until it has them; also for one that never said hello yet."""
        peer = self._peers.get(node)
        outbox = peer.outbox if peer else self._waiting.setdefault(node, Outbox())
        for order in orders:
            outbox.add(order)
        if peer:
            self._tell(peer, now)

    def ack(self, now: float) -> None:
        """All events returned by `receive` so far are safe: the nodes may forget them."""
        for peer in self._peers.values():
            if peer.inbox.last is not None and peer.inbox.last > peer.acked:
                peer.acked = peer.inbox.last
                self._tell(peer, now)

    def ask_counters(self) -> None:
        """Ask all nodes how far their ranks are; the answers come into `counters` with later calls of `receive`."""
        for peer in self._peers.values():
            self._put(peer, wire.Word(leader=self.instance, ack=peer.acked, ask=True))

    def close(self, *, linger_s: float = 0.2) -> None:
        """Close; what is on its way gets `linger_s` seconds."""
        self._router.close(linger=int(linger_s * 1000))
        self._zap.close(linger=0)
        self._context.term()

    def _bind(self) -> None:
        try:
            self._router.bind(f"tcp://*:{self._port}")
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            self._talk.say(f"port {self._port} is still in use: tried again until it is free")
            return
        self._bound = True
        endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._port = int(endpoint.rstrip("\0").rpartition(":")[2])

    def _serve_zap(self) -> None:
        """Answer who may come in."""
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            allowed = request[2:3] == [_DOMAIN] and request[5:7] == [b"CURVE", self._allowed]
            code, text = (b"200", b"OK") if allowed else (b"400", b"no")
            self._zap.send_multipart([b"1.0", request[1], code, text, b"", b""])
            if not allowed:
                address = request[3].decode("ascii", "replace")
                self._talk.say(f"somebody at {address} tried to connect with a key that is not this run's: refused")

    def _handle(self, identity: bytes, data: bytes, now: float, found: list[Heard]) -> _Peer | None:
        """One message; the peer that is owed an answer."""
        try:
            message = _TO_LEADER.decode(data)
            if isinstance(message, wire.Hello):
                return self._greet(identity, message, now, found)
            return self._take(identity, message, now, found)
        except msgspec.DecodeError:
            peer = self._by_identity.get(identity)
            self._talk.drop(peer.node if peer else "an unknown node")
            return None

    def _greet(self, identity: bytes, hello: wire.Hello, now: float, found: list[Heard]) -> _Peer | None:
        if hello.protocol != wire.PROTOCOL:
            why = f"ftsup {hello.version} on {hello.node} speaks protocol {hello.protocol}, this leader {wire.PROTOCOL}"
            self._talk.say(why)
            self._put_to(identity, wire.No(why=why))
            return None
        up = _UP.decode(hello.up)
        if (up.node, up.instance) != (hello.node, hello.instance):
            raise msgspec.DecodeError("the node contradicts itself")
        peer = self._peers.get(hello.node)
        if peer is None or peer.instance != hello.instance:
            if peer is not None:
                self._forget(peer)
            last = self._seen.get((hello.node, hello.instance))
            waiting = self._waiting.pop(hello.node) if hello.node in self._waiting else Outbox()
            peer = _Peer(hello.node, hello.instance, last=last, outbox=waiting)
            self._peers[hello.node] = peer
        self.heard_at[peer.node] = now
        self._know(peer, identity)
        peer.outbox.again()
        if not peer.greeted:
            peer.greeted = True
            found.append(Heard(node=peer.node, instance=peer.instance, events=(up,)))
        return peer

    def _take(self, identity: bytes, report: wire.Report, now: float, found: list[Heard]) -> _Peer | None:
        peer = self._by_identity.get(identity)
        if peer is None or report.leader != self.instance:
            self._put_to(identity, wire.Who())
            return None
        self._know(peer, identity)
        self.heard_at[peer.node] = now
        peer.outbox.acknowledge(report.ack)
        if report.counters is not None:
            self.counters[peer.node] = report.counters
        events = [event for raw in peer.inbox.take(report.events) if (event := self._event(peer, raw)) is not None]
        if events:
            found.append(Heard(node=peer.node, instance=peer.instance, events=tuple(events)))
        return peer

    def _event(self, peer: _Peer, raw: msgspec.Raw) -> NodeEvent | None:
        """One event, if it is one and speaks for its own node."""
        try:
            event = _EVENT.decode(raw)
        except msgspec.DecodeError:
            self._talk.drop(peer.node)
            return None
        if event.node not in ("", peer.node):
            self._talk.drop(peer.node)
            return None
        return event

    def _know(self, peer: _Peer, identity: bytes) -> None:
        """Answers go where the last message came from."""
        self._by_identity[identity] = peer
        if identity in peer.identities:
            peer.identities.remove(identity)
        peer.identities.append(identity)
        if len(peer.identities) > 16:  # noqa: PLR2004 - more than a host has addresses
            self._by_identity.pop(peer.identities.popleft(), None)

    def _forget(self, peer: _Peer) -> None:
        if peer.inbox.last is not None:
            self._seen[peer.node, peer.instance] = peer.inbox.last
        for identity in peer.identities:
            self._by_identity.pop(identity, None)

    def _tell(self, peer: _Peer, now: float) -> None:
        batch = peer.outbox.batch(now)
        if self._put(peer, wire.Word(leader=self.instance, ack=peer.acked, orders=batch)):
            peer.outbox.sent(batch, now)

    def _put(self, peer: _Peer, message: wire.ToNode) -> bool:
        return bool(peer.identities) and self._put_to(peer.identities[-1], message)

    def _put_to(self, identity: bytes, message: wire.ToNode) -> bool:
        try:
            self._router.send_multipart([identity, wire.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # full, or gone: it comes back, and gets it then
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            return False
        return True


# A node's end -------------------------------------------------------------------------------------------------------------


class _Line:
    """One address of the leader."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, address: str) -> None:
        self.address = address
        self.hello_at = -1e9
        self.socket = context.socket(zmq.DEALER)
        _common(self.socket)
        self.socket.curve_serverkey = keys.leader_public.encode()
        self.socket.curve_publickey = keys.node_public.encode()
        self.socket.curve_secretkey = keys.node_secret.encode()
        self.socket.sndhwm = 64
        self.socket.reconnect_ivl = 100
        self.socket.reconnect_ivl_max = 2000
        self.socket.setsockopt(zmq.CONNECT_TIMEOUT, 5000)
        self._monitor = self.socket.get_monitor_socket(_FAILED)
        self._monitor.linger = 0
        self.socket.connect(address)

    def refused(self) -> bool:
        """Whether a handshake failed since the last call."""
        failed = False
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            failed = True
        return failed

    def put(self, message: wire.ToLeader) -> bool:
        try:
            self.socket.send(wire.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self, *, linger_s: float = 0.0) -> None:
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=int(linger_s * 1000))


class NodeLink:
    """A node supervisor's end. `up` is what a leader is told when it is met: keep it true (`link.up = NodeUp(...)`)."""

    def __init__(self, keys: Keys, *, addresses: Sequence[str], up: NodeUp, now: float) -> None:
        if not addresses:
            raise ValueError("a node needs at least one address of its leader")
        self.up = up
        self.asked = False
        """The leader wants counters: `answer` it."""
        self._keys = keys
        self._addresses = tuple(dict.fromkeys(addresses))
        self._context = zmq.Context()
        self._talk = _Talk()
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._lines: list[_Line] = []
        self._chosen: _Line | None = None
        self._leader = ""
        self._full = False
        """The connection takes nothing now: tried again with the next `receive`."""
        self._inbox_of = ""
        self._heard_at = now
        self._sent_at = -1e9
        self._tried_at = now
        self._open_all()

    @property
    def leader(self) -> str:
        """The instance of the leader that we know; empty: none yet."""
        return self._leader

    @property
    def address(self) -> str:
        """The leader's address that works; empty: none yet."""
        return self._chosen.address if self._chosen else ""

    @property
    def garbage(self) -> int:
        """Messages that were dropped."""
        return self._talk.garbage

    @property
    def unsent(self) -> int:
        """Events that the leader did not acknowledge yet."""
        return len(self._outbox)

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for reading; changes while the leader is looked for."""
        return [line.socket for line in self._lines]

    def notes(self) -> list[str]:
        """What people should know about the link; each thing once."""
        return self._talk.take()

    def quiet_s(self, now: float) -> float:
        """How long the leader was not heard."""
        return now - self._heard_at

    def forget_time(self, now: float) -> None:
        """We were away: silence before now proves nothing."""
        self._heard_at = now

    def receive(self, now: float) -> list[NodeOrder]:
        """New orders; also says hello, repeats what was not acknowledged, and sends the sign of life."""
        orders: list[NodeOrder] = []
        self._full = False
        for line in list(self._lines):
            for _ in range(_PER_CALL):
                if line.socket.closed:  # another line was chosen
                    break
                try:
                    data = line.socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._handle(line, data, now, orders)
            if line in self._lines and line.refused():
                self._talk.say(f"{line.address} answers, but is not this run's leader or does not take our key")
        self._look(now)
        self._speak(now)
        return orders

    def report(self, events: Sequence[NodeEvent], now: float) -> None:
        """Events for the leader, kept until it has them on its disk."""
        for event in events:
            self._outbox.add(event, spare=isinstance(event, Progressed))
        self._speak(now)

    def answer(self, counters: Sequence[Counter], now: float) -> None:
        """How far the ranks are: the answer to `asked`."""
        self.asked = False
        self._speak(now, counters=tuple(counters))

    def close(self, *, linger_s: float = 0.2) -> None:
        """Close; what is on its way gets `linger_s` seconds."""
        for line in self._lines:
            line.close(linger_s=linger_s if line is self._chosen else 0.0)
        self._lines = []
        self._context.term()

    def _open_all(self) -> None:
        known = {line.address for line in self._lines}
        self._lines += [_Line(self._context, self._keys, address) for address in self._addresses if address not in known]

    def _look(self, now: float) -> None:
        """Say hello where it is due; try all addresses when the chosen one is silent."""
        if self.quiet_s(now) >= RETRY_S and now - self._tried_at >= RETRY_S:
            self._tried_at = now
            self._chosen, self._leader = None, ""
            self._open_all()
            self._talk.say(f"no answer from the leader at {', '.join(self._addresses)} for {RETRY_S:g} s: still trying")
        if self._leader:
            return
        hello = wire.Hello(
            protocol=wire.PROTOCOL,
            node=self.up.node,
            instance=self.up.instance,
            version=version("ftsup"),
            up=msgspec.Raw(wire.encode(self.up)),
        )
        for line in [self._chosen] if self._chosen else self._lines:
            if now - line.hello_at >= TICK_S and line.put(hello):
                line.hello_at = now

    def _speak(self, now: float, *, counters: tuple[Counter, ...] | None = None) -> None:
        if self._full or not (self._chosen and self._leader):
            return
        batch = self._outbox.batch(now)
        if not batch.items and counters is None and now - self._sent_at < TICK_S:
            return
        report = wire.Report(leader=self._leader, ack=self._inbox.last or 0, events=batch, counters=counters)
        self._full = not self._chosen.put(report)
        if not self._full:
            self._outbox.sent(batch, now)
            self._sent_at = now

    def _handle(self, line: _Line, data: bytes, now: float, orders: list[NodeOrder]) -> None:
        try:
            message = _TO_NODE.decode(data)
        except msgspec.DecodeError:
            self._talk.drop(line.address)
            return
        if isinstance(message, wire.No):
            self._talk.say(f"the leader refuses us: {message.why}")
            return
        if self._chosen is None:
            self._choose(line)
        self._heard_at = now
        if isinstance(message, wire.Who):
            self._leader = ""
            line.hello_at = -1e9
            return
        if message.leader != self._leader:
            self._leader = message.leader
            if self._inbox_of != message.leader:
                self._inbox, self._inbox_of = Inbox(), message.leader
            self._outbox.again()
            self._sent_at = -1e9
        self._outbox.acknowledge(message.ack)
        self.asked = self.asked or message.ask
        for raw in self._inbox.take(message.orders):
            self._sent_at = -1e9  # acknowledge at once
            try:
                orders.append(_ORDER.decode(raw))
            except msgspec.DecodeError:
                self._talk.drop(line.address)

    def _choose(self, line: _Line) -> None:
        self._chosen = line
        for other in self._lines:
            if other is not line:
                other.close()
        self._lines = [line]


def _common(socket: zmq.Socket[bytes]) -> None:
    """What both ends want: dead connections are noticed, nothing lingers, no message is bigger than ours are."""
    socket.linger = 0
    socket.setsockopt(zmq.MAXMSGSIZE, wire.MESSAGE_CAP)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 3000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10000)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 10000)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
