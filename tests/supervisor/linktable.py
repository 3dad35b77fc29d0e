"""A leader and nodes around one poll, for tests of the link: real sockets on loopback, ports chosen by the system; time is passed in."""

from __future__ import annotations

import contextlib
from itertools import count

import msgspec
import pytest
import zmq

from ftsup.events import Epoch, NodeUp, Stop
from ftsup.supervisor import wire
from ftsup.supervisor.clock import BootClock
from ftsup.supervisor.leaderlink import LeaderLink
from ftsup.supervisor.nodelink import NodeLink

STOP = Stop(node="n1", epoch=Epoch(1, 1), grace_s=3.0)
CLOCK = BootClock()
PATIENCE_S = 20.0
"""zmq works in threads of its own: on a crowded machine many rounds may pass before it comes to that."""


class Table:
    """A leader and nodes around one poll; `now` goes on with every round."""

    def __init__(self, keys):
        self.keys = keys
        self.now = 100.0
        self.leader = None
        self.nodes = {}
        self.heard = []
        self.orders = []
        self.open = []

    def lead(self, **options):
        self.leader = LeaderLink(self.keys, **({"instance": "L1"} | options))
        self.open.append(self.leader)
        return self.leader

    def node(self, name="n1", *, keys=None, instance="i1", addresses=None, **up):
        addresses = addresses or [f"tcp://127.0.0.1:{self.leader.port}"]
        link = NodeLink(keys or self.keys, addresses=addresses, up=NodeUp(node=name, instance=instance, **up), now=self.now)
        self.nodes[name, instance] = link
        self.open.append(link)
        return link

    def close(self, link):
        self.open.remove(link)
        link.close(linger_s=0)

    def round(self, *, dt=0.02, wait_ms=20):
        poller = zmq.Poller()
        for link in self.open:
            for one in link.sockets():
                poller.register(one, zmq.POLLIN)
        poller.poll(wait_ms)
        self.now += dt
        if self.leader in self.open:
            for heard in self.leader.receive(self.now):
                self.heard += [(heard.node, event) for event in heard.events]
        for node in self.nodes.values():
            if node in self.open:
                self.orders += node.receive(self.now)

    def until(self, ready, *, rounds=500, **options):
        end_t = CLOCK.now() + PATIENCE_S
        for number in count():
            if ready():
                return
            if number >= rounds and CLOCK.now() >= end_t:
                pytest.fail(f"not within {number} rounds: heard {self.heard[-5:]}, orders {self.orders[-5:]}")
            self.round(**options)

    def events(self, kind):
        return [event for _, event in self.heard if isinstance(event, kind)]


def told(table, leader):
    """What the leader tells, once there is something."""
    notes = []
    table.until(lambda: notes.extend(leader.notes()) or notes)
    return notes


@contextlib.contextmanager
def raw_dealer(keys, port):
    """Somebody who has the run's key and says what he likes."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.curve_serverkey = keys.leader_public.encode()
        dealer.curve_publickey, dealer.curve_secretkey = keys.node_public.encode(), keys.node_secret.encode()
        dealer.connect(f"tcp://127.0.0.1:{port}")
        yield dealer


def hello(up=None, *, protocol=wire.PROTOCOL, node="n1", instance="x"):
    raw = msgspec.Raw(wire.encode(up if up is not None else NodeUp(node=node, instance=instance)))
    return wire.encode(wire.Hello(protocol=protocol, node=node, instance=instance, version="0", up=raw))
