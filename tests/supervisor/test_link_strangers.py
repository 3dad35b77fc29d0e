"""Who does not have the run's key: refused, told once, and no node of ours notices. Real sockets, time passed in, as in test_link."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import threading

import msgspec
import pytest
import zmq

from ftsup.events import NodeUp, Warned
from ftsup.supervisor import wire
from ftsup.supervisor.door import HANDSHAKE_S, ROOM
from ftsup.supervisor.keys import make_keys
from tests.supervisor.linktable import told

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
HUGE = GREETING + b"\x06" + struct.pack(">Q", 1 << 40)
"""The head of a command of 1 TiB."""


@contextlib.contextmanager
def connected(table, *says: bytes):
    """Plain TCP connections to the leader, each of which says something."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_connection(("127.0.0.1", table.leader.port), timeout=5)) for _ in says]
        for one, data in zip(made, says, strict=True):
            one.sendall(data)
        yield made


def strangers_dealer(table, context, **keys):
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    for name, value in keys.items():
        setattr(dealer, name, value)
    dealer.connect(f"tcp://127.0.0.1:{table.leader.port}")
    dealer.send(wire.encode(wire.Hello(protocol=1, node="n1", instance="x", version="", up=msgspec.Raw(b"\x80"))))
    return dealer


def still_heard(table, node):
    """A report of the node reaches the leader, and its word the node."""
    before = len(table.events(Warned))
    node.report([Warned(node="n1")], table.now)
    table.until(lambda: len(table.events(Warned)) > before)
    table.leader.ack(table.now)
    table.until(lambda: node.unsent == 0)


def with_node(table, **options):
    table.lead(**options)
    node = table.node()
    table.until(lambda: table.events(NodeUp) and node.leader)
    return node


@pytest.mark.parametrize(
    "data",
    [os.urandom(1000), b"GET / HTTP/1.0\r\n\r\n", GREETING + os.urandom(300), HUGE, b"\0" * 100_000],
    ids=["noise", "http", "noise after a greeting", "a huge frame", "zeros"],
)
def test_what_is_no_handshake_is_refused_and_told_once(table, data):
    node = with_node(table)
    with connected(table, data, data, data):
        (said,) = told(table, table.leader)
        table.until(lambda: table.leader.strangers == 3)
    assert "does not have this run's key" in said.text
    assert said.trouble == "strangers"
    assert table.leader.notes() == []
    still_heard(table, node)
    assert [node for node, _ in table.heard] == ["n1"] * len(table.heard)
    assert table.leader.garbage == 0


def test_connections_that_say_nothing_are_told_as_strangers(table):
    node = with_node(table)
    with connected(table, b"", b"", b""):
        for _ in range(3):
            table.round()
    (said,) = told(table, table.leader)
    assert said.trouble == "strangers"
    still_heard(table, node)


def test_who_has_no_encryption_or_other_keys_is_refused_and_told_once(table, tmp_path):
    node = with_node(table)
    other = make_keys(tmp_path / "other")
    pair = {"curve_publickey": other.node_public.encode(), "curve_secretkey": other.node_secret.encode()}
    knows_us = pair | {"curve_serverkey": table.keys.leader_public.encode()}
    with zmq.Context() as context, contextlib.ExitStack() as stack:
        for keys in ({}, pair | {"curve_serverkey": other.leader_public.encode()}, knows_us):
            stack.enter_context(strangers_dealer(table, context, **keys))
        table.until(lambda: table.leader.strangers >= 3)
    assert [note.trouble for note in table.leader.notes()] == ["strangers"]
    still_heard(table, node)
    assert len(table.events(NodeUp)) == 1


class Tap:
    """Somebody between a node and its leader, who writes down what the node says."""

    def __init__(self, port: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.heard = b""
        self._ends = [self.listener]
        self._thread = threading.Thread(target=self._serve, args=(port,), daemon=True)
        self._thread.start()

    def _serve(self, port: int) -> None:
        node, _ = self.listener.accept()
        leader = socket.create_connection(("127.0.0.1", port))
        self._ends += [node, leader]
        back = threading.Thread(target=self._pass, args=(leader, node), daemon=True)
        back.start()
        self._pass(node, leader, note=True)
        back.join()

    def _pass(self, source: socket.socket, target: socket.socket, *, note: bool = False) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.heard += data if note else b""
                target.sendall(data)

    def close(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for end in self._ends:
            end.close()


def test_what_a_node_said_earlier_means_nothing_when_somebody_says_it_again(table):
    table.lead()
    tap = Tap(table.leader.port)
    node = table.node(addresses=[f"tcp://127.0.0.1:{tap.port}"])
    node.report([Warned(node="n1")], table.now)
    table.until(lambda: table.events(Warned))
    table.close(node)
    tap.close()
    assert len(tap.heard) > len(GREETING) + 300
    table.leader.notes()
    table.heard.clear()
    port = table.leader.port
    for instance in ("the same", "L2"):  # also to the leader of a later grant, which has the same keys
        if instance == "L2":
            table.close(table.leader)
            table.lead(instance=instance, port=port)
        with connected(table, tap.heard, tap.heard[: len(GREETING) + 250]):
            (said,) = told(table, table.leader)
        assert said.trouble == "strangers"
        assert table.heard == []


def may_filter() -> bool:
    """Whether this kernel lets us filter what comes to a TCP socket: new ones let only root."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    with socket.create_server(("127.0.0.1", 0)) as one, contextlib.suppress(PermissionError):
        one.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(drop)))
        return True
    return False


@contextlib.contextmanager
def crowd(table, size):
    with contextlib.ExitStack() as stack:
        for one in [stack.enter_context(socket.socket()) for _ in range(size)]:
            one.settimeout(0)
            one.connect_ex(("127.0.0.1", table.leader.port))
        yield


def test_a_crowd_is_told_and_those_who_are_in_notice_nothing(table):
    node = with_node(table, nodes=1)
    with crowd(table, 3 * (ROOM + 4)):
        assert [note.trouble for note in told(table, table.leader)] == ["crowd"]
        late = table.node("n2")
        still_heard(table, node)
    table.until(lambda: late.leader, dt=HANDSHAKE_S / 200, wait_ms=50, rounds=30_000)  # its SYN is sent again by the kernel's clock
    table.until(lambda: table.leader.strangers > ROOM)
    assert [note.trouble for note in table.leader.notes()] == ["strangers"]


@pytest.mark.skipif(not may_filter(), reason="this kernel lets only root filter what comes to a TCP socket")
def test_a_crowd_is_shut_out_for_a_round(table):
    with_node(table, nodes=1)
    with crowd(table, 3 * (ROOM + 4)):
        told(table, table.leader)
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.1", table.leader.port), timeout=0.3)
        late = table.node("n2")
        for _ in range(10):
            table.round(dt=0)
        assert [event.node for event in table.events(NodeUp)] == ["n1"]
    table.until(lambda: late.leader, dt=HANDSHAKE_S / 200, wait_ms=50, rounds=30_000)  # its SYN is sent again by the kernel's clock


def test_that_it_is_over_is_told_as_well(table):
    with_node(table)
    with connected(table, b"\0" * 1000):
        told(table, table.leader)
    for _ in range(70):
        table.round(dt=HANDSHAKE_S, wait_ms=0)
    (over,) = table.leader.notes()
    assert (over.trouble, over.over) == ("strangers", True)
    with connected(table, b"\0" * 1000):
        (again,) = told(table, table.leader)
    assert again.trouble == "strangers"
    assert not again.over


def test_a_node_that_tries_many_addresses_of_the_leader_is_no_stranger(table):
    table.lead()
    addresses = [f"tcp://127.0.0.{number}:{table.leader.port}" for number in range(1, 9)]
    node = table.node(addresses=addresses)
    table.until(lambda: node.leader)
    assert len(node.sockets()) == 1
    for _ in range(110):  # no faster than time goes: in SPARE_S it finishes the handshakes of the lines that it does not need
        table.round()
    table.close(node)
    for _ in range(10):
        table.round(dt=HANDSHAKE_S, wait_ms=0)
    assert table.leader.strangers == 0
    assert table.leader.notes() == []


def test_nodes_that_gave_up_while_the_leader_was_away_are_no_strangers(table):
    table.lead()
    with connected(table, b"", b""):
        table.round()
        table.now += 300
        table.leader.forget_time(table.now)
    table.until(lambda: table.leader.strangers == 2, dt=0)
    assert table.leader.notes() == []


def test_somebody_who_has_the_port_before_us_hears_nothing_that_can_be_read(table):
    with socket.create_server(("127.0.0.1", 0)) as forged:
        port = forged.getsockname()[1]
        table.lead(port=port)
        assert not table.leader.bound
        node = table.node(addresses=[f"tcp://127.0.0.1:{port}"])
        forged.settimeout(0)
        came = []
        table.until(lambda: came or came.append(_accepted(forged)) or came[-1] or came.clear())
        came[0].sendall(GREETING)
        came[0].settimeout(20)
        said = b""
        while len(said) <= len(GREETING):
            said += came[0].recv(1 << 16)
        came[0].close()
    assert b"NodeUp" not in said
    assert b"n1" not in said[len(GREETING) :]
    table.until(lambda: node.leader == "L1")


def _accepted(listener):
    with contextlib.suppress(BlockingIOError):
        return listener.accept()[0]
    return None
