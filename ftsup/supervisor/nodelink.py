"""A node supervisor's end of the link (see `link`): finds its leader, a new one as well, and loses nothing on the way.

It reads no clock and decides nothing: how long the leader is silent is measured here and judged by the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from ftsup.events import NodeEvent, NodeOrder, NodeUp, Noted, Progressed
from ftsup.supervisor import wire
from ftsup.supervisor.keys import Keys
from ftsup.supervisor.link import PER_CALL, TICK_S, Talk, common
from ftsup.supervisor.wire import Counter, Inbox, Outbox

RETRY_S = 10.0
"""A node that hears nothing for so long tries all addresses again."""
SPARE_S = 2.0
"""Lines that are not needed finish their handshake: one that breaks off in it looks like a stranger's."""
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_TO_NODE = msgspec.msgpack.Decoder(wire.ToNode)
_ORDER = msgspec.msgpack.Decoder(NodeOrder)


class _Line:
    """One address of the leader."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys, address: str) -> None:
        self.address = address
        self.hello_at = -1e9
        self.socket = context.socket(zmq.DEALER)
        common(self.socket)
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
        self._first = self._addresses = tuple(dict.fromkeys(addresses))
        self._context = zmq.Context()
        self._talk = Talk()
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._lines: list[_Line] = []
        self._chosen: _Line | None = None
        self._spare: list[_Line] = []
        self._chosen_at = now
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

    def notes(self) -> list[Noted]:
        """What people should know about the link; each thing once."""
        return self._talk.take()

    def quiet_s(self, now: float) -> float:
        """How long the leader was not heard."""
        return now - self._heard_at

    def forget_time(self, now: float) -> None:
        """We were away: silence before now proves nothing."""
        self._heard_at = now

    def learn(self, addresses: Sequence[str]) -> None:
        """Where the leader is said to be now; who answers there proves it. The addresses that we were started with stay."""
        found = tuple(dict.fromkeys((*self._first, *addresses)))
        if found != self._addresses:
            self._addresses = found
            self._chosen, self._leader = None, ""
            self._open_all()

    def receive(self, now: float) -> list[NodeOrder]:
        """New orders; also says hello, repeats what was not acknowledged, and sends the sign of life."""
        orders: list[NodeOrder] = []
        self._full = False
        for line in list(self._lines):
            for _ in range(PER_CALL):
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
        for line in (*self._lines, *self._spare):
            line.close(linger_s=linger_s if line is self._chosen else 0.0)
        self._lines, self._spare = [], []
        self._context.term()

    def _open_all(self) -> None:
        known = {line.address for line in self._lines}
        self._lines += [_Line(self._context, self._keys, address) for address in self._addresses if address not in known]

    def _look(self, now: float) -> None:
        """Say hello where it is due; try all addresses when the chosen one is silent."""
        if self._spare and now - self._chosen_at >= SPARE_S:
            for line in self._spare:
                line.close()
            self._spare = []
        if self.quiet_s(now) >= RETRY_S and now - self._tried_at >= RETRY_S:
            self._tried_at = now
            self._chosen, self._leader = None, ""
            self._open_all()
            self._talk.say(f"no answer from the leader at {', '.join(self._addresses)} for {RETRY_S:g} s: still trying")
        if self._leader:
            return
        for line in [self._chosen] if self._chosen else self._lines:
            if now - line.hello_at >= TICK_S and line.put(self._hello(line.address)):
                line.hello_at = now

    def _hello(self, address: str) -> wire.Hello:
        up = msgspec.structs.replace(self.up, via=address.removeprefix("tcp://").rpartition(":")[0])
        return wire.Hello(
            protocol=wire.PROTOCOL, node=up.node, instance=up.instance, version=version("ftsup"), up=msgspec.Raw(wire.encode(up))
        )

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
            self._choose(line, now)
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

    def _choose(self, line: _Line, now: float) -> None:
        self._chosen, self._chosen_at = line, now
        self._spare += [other for other in self._lines if other is not line]
        self._lines = [line]
