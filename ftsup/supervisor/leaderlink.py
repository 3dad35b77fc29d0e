"""The leader's end of the link (see `link`): who may come in, who is there, what each node said and was told.

It reads no clock and decides nothing: silence is measured here and judged by the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import msgspec
import zmq
from zmq.utils import z85

from ftsup.events import NodeEvent, NodeOrder, NodeUp, Noted
from ftsup.supervisor import wire
from ftsup.supervisor.door import HANDSHAKE_S, Door
from ftsup.supervisor.keys import Keys
from ftsup.supervisor.link import PER_CALL, TICK_S, Talk, common, own_addresses, raise_file_limit
from ftsup.supervisor.wire import Counter, Inbox, Outbox

_DOMAIN = b"ftsup"
_ZAP = "inproc://zeromq.zap.01"
_TO_LEADER = msgspec.msgpack.Decoder(wire.ToLeader)
_UP = msgspec.msgpack.Decoder(NodeUp)
_EVENT = msgspec.msgpack.Decoder(NodeEvent)


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What a node said: its NodeUp when this leader meets it, then its events in their order."""

    node: str
    instance: str
    events: tuple[NodeEvent, ...]


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

    def __init__(
        self, keys: Keys, *, instance: str, port: int = 0, nodes: int = 256, seen: dict[tuple[str, str], int] | None = None
    ) -> None:
        raise_file_limit()
        self.instance = instance
        self.heard_at: dict[str, float] = {}
        """Node -> when it was last heard."""
        self.counters: dict[str, tuple[Counter, ...]] = {}
        """Node -> its last answer to `ask_counters`."""
        self._talk = Talk()
        self._peers: dict[str, _Peer] = {}
        self._held: dict[tuple[str, str], _Peer] = {}
        """(node, instance) -> a supervisor that another one keeps from its node: it says so, and leaves. Orders are for the other one."""
        self._waiting: dict[str, Outbox] = {}
        self._by_identity: dict[bytes, _Peer] = {}
        self._seen = dict(seen or {})
        self._looked_at = -1e9
        self._allowed = z85.decode(keys.node_public)
        self._context = zmq.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.linger = 0
        self._zap.bind(_ZAP)  # before the ROUTER: where nobody listens, everybody is let in
        self._router = self._context.socket(zmq.ROUTER)
        common(self._router)
        self._router.router_mandatory = 1
        self._router.curve_server = 1
        self._router.curve_secretkey = keys.leader_secret.encode()
        self._router.zap_domain = _DOMAIN
        self._router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        self._router.sndhwm = 100
        self._router.rcvhwm = 1000
        self._door = Door(self._context, self._router, port=port, nodes=nodes)
        self._strangers, self._away_t = 0, -1e9
        self._nodes, self._moved = nodes, ""
        self._door.bind()

    @property
    def bound(self) -> bool:
        """Whether nodes can reach us: a port that is taken is tried again by `receive`, for a while, and then another one."""
        return self._door.bound

    @property
    def port(self) -> int:
        """The port, or the one that is waited for: it changes where that is somebody else's, and nodes have to be told."""
        return self._door.port

    @property
    def addresses(self) -> list[str]:
        """What nodes are told: all of them, since only they can know which one reaches us."""
        return [f"tcp://{address}:{self.port}" for address in own_addresses()]

    @property
    def garbage(self) -> int:
        """Messages that were dropped."""
        return self._talk.garbage

    @property
    def strangers(self) -> int:
        """Connections that did not prove to be of this run."""
        return self._door.strangers

    @property
    def seen(self) -> dict[tuple[str, str], int]:
        """(node, instance) -> the last event taken."""
        return self._seen | {(peer.node, peer.instance): peer.inbox.last for peer in self._all() if peer.inbox.last is not None}

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to poll for reading."""
        return [self._router, self._zap, self._door.monitor]

    def notes(self) -> list[Noted]:
        """What people should know about the link; each thing once."""
        return self._talk.take()

    def quiet_s(self, node: str, now: float) -> float | None:
        """How long nothing came from a node; None: nothing ever came."""
        at = self.heard_at.get(node)
        return None if at is None else now - at

    def forget_time(self, now: float) -> None:
        """We were away: silence before now proves nothing, and nodes have given up in the middle of a handshake."""
        self._away_t = now
        for node in self.heard_at:
            self.heard_at[node] = now

    def receive(self, now: float) -> list[Heard]:
        """Everything that came. Events count as taken, but the nodes keep them until `ack`."""
        if not self.bound:
            self._bind(now)
        self._serve_zap()
        found: list[Heard] = []
        connections: set[int] = set()
        owed: dict[tuple[str, str], _Peer] = {}
        for _ in range(PER_CALL):
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            connections.add(int(identity.get(zmq.SRCFD)))
            peer = self._handle(identity.bytes, b"".join(frame.bytes for frame in frames), now, found)
            if peer is not None:
                owed[peer.node, peer.instance] = peer
        self._serve_zap()
        self._move(now)
        self._watch_door(now, connections)
        if now - self._looked_at >= TICK_S:  # not with every message: there may be a thousand nodes
            self._looked_at = now
            owed |= {
                (peer.node, peer.instance): peer
                for peer in self._peers.values()
                if (due := peer.outbox.due_at()) is not None and due <= now
            }
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
        for peer in self._all():
            if peer.inbox.last is not None and peer.inbox.last > peer.acked:
                peer.acked = peer.inbox.last
                self._tell(peer, now)

    def ask_counters(self) -> None:
        """Ask all nodes how far their ranks are; the answers come into `counters` with later calls of `receive`."""
        for peer in self._peers.values():
            self._put(peer, wire.Word(leader=self.instance, ack=peer.acked, ask=True))

    def close(self, *, linger_s: float = 0.2) -> None:
        """Close; what is on its way gets `linger_s` seconds."""
        self._door.close()
        self._router.close(linger=int(linger_s * 1000))
        self._zap.close(linger=0)
        self._context.term()

    def _bind(self, now: float) -> None:
        given_up = self._door.find(now)
        if given_up is not None:
            where = f"it is at port {self.port} now, which nodes read in leader.json"
            self._moved = f"somebody else has port {given_up}, where the leader was: {where}"

    def _move(self, now: float) -> None:
        """Another port than the nodes know: told until all of them have found it."""
        if self._moved and len(self._peers) < self._nodes:
            self._talk.trouble("port", self._moved, now)
        elif self._moved:
            self._talk.over("port", f"all nodes have found the leader at port {self.port}")
            self._moved = ""

    def _watch_door(self, now: float, connections: Collection[int]) -> None:
        """Whoever came without the run's key, or with none: told once, and once more when it is over."""
        self._door.look(now, heard=connections)
        came, self._strangers = self._door.strangers - self._strangers, self._door.strangers
        if came and now - self._away_t >= 2 * HANDSHAKE_S:
            text = f"somebody who does not have this run's key connects to the leader's port {self.port}: refused, each time"
            self._talk.trouble("strangers", text, now)
        if self._door.crowded:
            text = f"so many strangers connect to the leader's port {self.port} that new nodes may have to wait; those that are there go on"
            self._talk.trouble("crowd", text, now)
        self._talk.calm(now)

    def _serve_zap(self) -> None:
        """Answer who may come in."""
        for _ in range(PER_CALL):
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            allowed = request[2:3] == [_DOMAIN] and request[5:7] == [b"CURVE", self._allowed]
            code, text = (b"200", b"OK") if allowed else (b"400", b"no")
            self._zap.send_multipart([b"1.0", request[1], code, text, b"", b""])

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
        peer = self._held.get((hello.node, hello.instance)) if up.held else self._peers.get(hello.node)
        if peer is None or peer.instance != hello.instance:
            peer = self._met(peer, hello, held=bool(up.held))
        self.heard_at[peer.node] = now
        self._know(peer, identity)
        peer.outbox.again()
        if not peer.greeted:
            peer.greeted = True
            found.append(Heard(node=peer.node, instance=peer.instance, events=(up,)))
        return peer

    def _all(self) -> list[_Peer]:
        return [*self._peers.values(), *self._held.values()]

    def _met(self, before: _Peer | None, hello: wire.Hello, *, held: bool) -> _Peer:
        """Somebody new, perhaps in the place of the one before."""
        if before is not None:
            self._forget(before)
        last = self._seen.get((hello.node, hello.instance))
        waiting = self._waiting.pop(hello.node) if hello.node in self._waiting and not held else Outbox()
        peer = _Peer(hello.node, hello.instance, last=last, outbox=waiting)
        if held:
            self._held[hello.node, hello.instance] = peer
        else:
            self._peers[hello.node] = peer
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
