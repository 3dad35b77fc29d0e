"""Real sockets on loopback, ports chosen by the system; time is passed in, and waiting is polling the sockets, bounded."""

from __future__ import annotations

import os
import resource
import socket
import stat

import msgspec
import pytest
import zmq

from ftsup.errors import RunError
from ftsup.events import Epoch, Launch, NodeUp, Noted, Progressed, Warned
from ftsup.supervisor import wire
from ftsup.supervisor.keys import make_keys, read_keys
from ftsup.supervisor.link import own_addresses
from ftsup.supervisor.wire import Counter
from tests.supervisor.linktable import STOP, hello, raw_dealer, told


def test_keys_are_ours_alone_and_never_made_twice(tmp_path, keys):
    folder = tmp_path / "keys"
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert read_keys(folder) == keys
    with pytest.raises(FileExistsError):
        make_keys(folder)
    file.chmod(0o640)
    with pytest.raises(RunError, match="mode 0640"):
        read_keys(folder)
    file.write_text("{}")
    with pytest.raises(RunError, match="damaged"):
        read_keys(folder)
    with pytest.raises(RunError, match="cannot be read"):
        read_keys(tmp_path)


def test_a_node_says_hello_reports_and_is_ordered(table):
    leader = table.lead()
    node = table.node(version="0.1")
    table.until(lambda: table.events(NodeUp))
    assert table.heard == [("n1", NodeUp(node="n1", instance="i1", version="0.1", via="127.0.0.1"))]
    node.report([Warned(node="n1"), Noted(text="x")], table.now)
    table.until(lambda: len(table.heard) == 3)
    assert table.heard[1:] == [("n1", Warned(node="n1")), ("n1", Noted(text="x"))]
    leader.send("n1", [STOP, Launch(node="n1", epoch=Epoch(1, 2), node_rank=0, nodes=2, address="a", port=1)], table.now)
    table.until(lambda: len(table.orders) == 2)
    assert table.orders[0] == STOP
    assert node.leader == "L1"
    assert node.address.startswith("tcp://127.0.0.1:")


def test_events_are_kept_until_the_leader_says_that_they_are_safe(table):
    leader = table.lead()
    node = table.node()
    node.report([Warned(node="n1")], table.now)
    table.until(lambda: table.events(Warned))
    for _ in range(5):
        table.round(dt=2.0)  # ten seconds: sent again, and not told twice
    assert node.unsent == 1
    assert len(table.events(Warned)) == 1
    leader.ack(table.now)
    table.until(lambda: node.unsent == 0)


def test_a_new_leader_on_the_same_port_meets_the_node_again_and_gets_what_was_not_safe(table):
    leader = table.lead()
    port = leader.port
    node = table.node()
    node.report([Warned(node="n1")], table.now)
    table.until(lambda: table.events(Warned))
    leader.ack(table.now)
    table.until(lambda: node.unsent == 0)
    node.report([Noted(text="not acknowledged")], table.now)
    table.until(lambda: table.events(Noted))
    table.close(leader)
    node.report([Noted(text="while nobody led")], table.now)
    node.up = NodeUp(node="n1", instance="i1", running=Epoch(1, 1))
    table.heard = []
    table.lead(instance="L2", port=port)
    table.until(lambda: len(table.events(Noted)) == 2)
    assert [event for _, event in table.heard] == [
        msgspec.structs.replace(node.up, via="127.0.0.1"),
        Noted(text="not acknowledged"),
        Noted(text="while nobody led"),
    ]
    assert node.leader == "L2"


def test_a_new_leader_that_remembers_what_was_seen_is_not_told_twice(table):
    leader = table.lead()
    node = table.node()
    node.report([Warned(node="n1")], table.now)
    table.until(lambda: table.events(Warned))
    seen, port = leader.seen, leader.port
    table.close(leader)
    table.lead(instance="L2", port=port, seen=seen)
    table.until(lambda: node.unsent == 0)
    assert len(table.events(Warned)) == 1
    assert len(table.events(NodeUp)) == 2


def test_a_port_that_is_still_in_use_is_tried_again(table):
    old = table.lead()
    new = table.lead(instance="L2", port=old.port)
    assert not new.bound
    table.close(old)
    table.until(lambda: new.bound)
    assert new.port == old.port
    table.node()
    table.until(lambda: table.events(NodeUp))
    assert new.notes() == []


def test_a_port_that_stays_in_use_is_left_and_nodes_that_are_told_find_the_leader(table):
    first = table.lead(nodes=2)
    nodes = [table.node("n1"), table.node("n2")]
    table.until(lambda: len(table.events(NodeUp)) == 2)
    table.close(first)
    with socket.create_server(("127.0.0.1", first.port)):
        new = table.lead(instance="L2", port=first.port, nodes=2)
        table.until(lambda: new.bound, dt=0.5)
        assert new.port != first.port
        for node in nodes:
            node.learn([f"tcp://127.0.0.1:{new.port}"])
        table.until(lambda: {node.leader for node in nodes} == {"L2"})
        nodes[0].report([Warned(node="n1")], table.now)
        table.until(lambda: table.events(Warned))
        for _ in range(5):
            table.round(dt=10.0)
        texts = [(note.text, note.over) for note in new.notes()]
    assert texts == [
        (
            f"somebody else has port {first.port}, where the leader was: it is at port {new.port} now, which nodes read in leader.json",
            False,
        ),
        (f"all nodes have found the leader at port {new.port}", True),
    ]


def test_a_second_supervisor_that_another_one_keeps_out_costs_that_one_no_order(table):
    """The numbers of what it was told go on, where they began again an order counted as one that it has."""
    leader = table.lead()
    table.node()
    table.until(lambda: table.events(NodeUp))
    leader.send("n1", [STOP], table.now)
    table.until(lambda: len(table.orders) == 1)
    second = table.node(instance="i2", held=4711)
    second.report([Warned(node="n1")], table.now)
    table.until(lambda: table.events(Warned))
    leader.ack(table.now)
    table.until(lambda: second.unsent == 0)
    table.close(second)
    for _ in range(20):
        table.round(dt=0.2)
    leader.send("n1", [STOP], table.now)
    table.until(lambda: len(table.orders) == 2)


def test_what_a_node_learns_that_is_old_news_costs_it_nothing(table):
    leader = table.lead()
    node = table.node()
    table.until(lambda: node.leader)
    node.learn([f"tcp://127.0.0.1:{leader.port}"])
    assert node.leader == "L1"


def test_an_order_that_is_sent_again_comes_once(table):
    leader = table.lead()
    node = table.node()
    table.until(lambda: table.events(NodeUp))
    leader.send("n1", [STOP], table.now)
    leader.send("n1", [STOP], table.now + 6)  # sent again before the first was acknowledged, plus one of its own
    table.until(lambda: len(table.orders) == 2)
    for _ in range(5):
        table.round(dt=3.0)
    assert len(table.orders) == 2
    assert node.garbage == 0


def test_orders_for_a_node_that_is_not_there_yet_wait_for_it(table):
    table.lead().send("n1", [STOP], table.now)
    table.node()
    table.until(lambda: table.orders == [STOP])


def test_orders_for_a_dead_supervisor_do_not_reach_its_successor(table):
    leader = table.lead()
    first = table.node()
    table.until(lambda: table.events(NodeUp))
    table.close(first)
    leader.send("n1", [STOP], table.now)
    second = table.node(instance="i2")
    table.until(lambda: len(table.events(NodeUp)) == 2)
    second.report([Warned(node="n1")], table.now)
    table.until(lambda: table.events(Warned))
    assert table.orders == []


def test_the_first_address_that_answers_is_used(table, unused_address):
    leader = table.lead()
    node = table.node(addresses=[unused_address, f"tcp://127.0.0.1:{leader.port}"])
    table.until(lambda: node.leader)
    assert node.address == f"tcp://127.0.0.1:{leader.port}"
    assert len(node.sockets()) == 1


@pytest.fixture
def unused_address():
    with socket.socket() as bound:  # bound and never listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{bound.getsockname()[1]}"


def test_both_ends_know_that_the_other_lives_with_nothing_to_say(table):
    leader = table.lead()
    node = table.node()
    table.until(lambda: table.events(NodeUp))
    for _ in range(30):
        table.round(dt=1.0)
        table.until(lambda: node.quiet_s(table.now) <= 2.0 and leader.quiet_s("n1", table.now) <= 2.0, dt=0)
    assert leader.quiet_s("n7", table.now) is None


def test_silence_is_measured_and_forgotten_when_we_were_away(table):
    leader = table.lead()
    node = table.node()
    table.until(lambda: table.events(NodeUp))
    table.close(node)
    table.now += 300
    assert leader.quiet_s("n1", table.now) > 299
    leader.forget_time(table.now)
    assert leader.quiet_s("n1", table.now) == 0
    assert node.quiet_s(table.now) > 299
    node.forget_time(table.now)
    assert node.quiet_s(table.now) == 0


def test_counters_are_asked_for_and_answered(table):
    leader = table.lead()
    node = table.node()
    table.until(lambda: table.events(NodeUp) and node.leader)
    leader.ask_counters()
    table.until(lambda: node.asked)
    node.answer([Counter(rank=0, step=7, beats=8, activity=99, phase="STEP")], table.now)
    table.until(lambda: "n1" in leader.counters)
    assert leader.counters["n1"] == (Counter(0, 7, 8, 99, "STEP"),)
    assert not node.asked


@pytest.mark.parametrize("which", ["both", "node"])
def test_a_stranger_with_keys_of_its_own_is_not_let_in(table, tmp_path, which):
    leader = table.lead()
    strange = make_keys(tmp_path / "strange")
    if which == "node":  # it knows the leader's public key, and has no right to come in
        strange = msgspec.structs.replace(strange, leader_public=table.keys.leader_public)
    stranger = table.node(keys=strange)
    notes = []
    table.until(lambda: notes.extend(stranger.notes()) or notes)
    assert "does not take our key" in notes[0].text
    assert table.heard == []
    (said,) = told(table, leader)
    assert "does not have this run's key" in said.text


def test_a_client_without_encryption_is_not_heard(table):
    leader = table.lead()
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.linger = 0
        monitor = plain.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED)
        plain.connect(f"tcp://127.0.0.1:{leader.port}")
        plain.send(wire.encode(wire.Hello(protocol=1, node="n1", instance="x", version="", up=msgspec.Raw(b"\x80"))))
        table.until(lambda: monitor.poll(0))
        plain.disable_monitor()
        monitor.close()
    assert table.heard == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        os.urandom(300),
        msgspec.msgpack.encode({"type": "hello"}),
        msgspec.msgpack.encode({"type": "report", "leader": 1}),
        hello({"type": "NodeUp", "node": 5}),
        hello(NodeUp(node="another", instance="x")),
    ],
)
def test_garbage_is_dropped_counted_and_told_once(table, data):
    leader = table.lead()
    with raw_dealer(table.keys, leader.port) as dealer:
        for _ in range(3):
            dealer.send(data)
        table.until(lambda: leader.garbage == 3)
    assert len(leader.notes()) == 1
    assert table.heard == []


def test_an_event_that_is_none_or_speaks_for_another_node_is_dropped_and_the_rest_taken(table):
    leader = table.lead()
    items = [{"type": "Nonsense"}, Warned(node="n2"), Warned(node="n1")]
    batch = wire.Batch(0, tuple((n + 1, msgspec.Raw(wire.encode(item))) for n, item in enumerate(items)))
    with raw_dealer(table.keys, leader.port) as dealer:
        dealer.send(hello())
        dealer.send(wire.encode(wire.Report(leader="L1", events=batch)))
        table.until(lambda: table.events(Warned))
    assert table.events(Warned) == [Warned(node="n1")]
    assert leader.garbage == 2


def test_another_protocol_is_refused_with_a_sentence_on_both_sides(table):
    leader = table.lead()
    with raw_dealer(table.keys, leader.port) as dealer:
        dealer.send(hello(protocol=99, up={"shape": "unknown"}))
        table.until(lambda: dealer.poll(0))
        answer = msgspec.msgpack.decode(dealer.recv(), type=wire.ToNode)
    assert "protocol 99" in answer.why
    assert "protocol 99" in leader.notes()[0].text
    assert leader.garbage == 0


def test_a_message_that_is_too_big_ends_the_connection_and_nothing_else(table):
    leader = table.lead()
    with raw_dealer(table.keys, leader.port) as dealer:
        dealer.send(b"x" * (wire.MESSAGE_CAP + 1))
        table.node()
        table.until(lambda: table.events(NodeUp))
    assert leader.garbage == 0


def test_a_flood_of_one_node_does_not_keep_the_others_out(table):
    leader = table.lead()
    with raw_dealer(table.keys, leader.port) as dealer:
        dealer.sndhwm = 0
        for _ in range(20_000):
            dealer.send(b"flood")
        table.node()
        table.until(lambda: table.events(NodeUp))
    assert leader.garbage > 0
    assert len(leader.notes()) == 1


def test_progress_is_dropped_first_when_the_leader_is_away_for_long(table):
    leader = table.lead()
    node = table.node()
    table.until(lambda: node.leader)
    table.close(leader)
    node.report([Warned(node="n1")], table.now)
    for number in range(wire.KEEP + 10):
        node.report([Progressed(node="n1", epoch=Epoch(1, 1), phase="STEP", step=number)], table.now)
    assert node.unsent == wire.KEEP
    table.lead(instance="L2", port=leader.port)
    table.until(lambda: len(table.heard) >= wire.KEEP + 1)
    assert len(table.events(Warned)) == 1
    assert table.events(Progressed)[-1].step == wire.KEEP + 9


@pytest.mark.timeout(180)  # the work of some seconds, on a machine where others work
def test_two_hundred_nodes(table):
    leader = table.lead()
    for number in range(200):
        table.node(f"n{number}").report([Warned(node=f"n{number}")], table.now)
    table.until(lambda: len(table.events(Warned)) == 200, wait_ms=5)
    leader.ack(table.now)
    for number in range(200):
        leader.send(f"n{number}", [msgspec.structs.replace(STOP, node=f"n{number}")], table.now)
    table.until(lambda: len(table.orders) == 200, wait_ms=5)
    table.until(lambda: all(node.unsent == 0 for node in table.nodes.values()))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard


def test_loopback_is_the_last_address_that_is_tried():
    assert own_addresses()[-1] == "127.0.0.1"
