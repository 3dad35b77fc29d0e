from __future__ import annotations

import msgspec
import pytest

from ftsup.supervisor.wire import BATCH_CAP, KEEP, RESEND_S, Batch, Inbox, Outbox


def open_(items):
    return [msgspec.msgpack.decode(raw) for raw in items]


def deliver(outbox, inbox, now):
    batch = outbox.batch(now)
    outbox.sent(batch, now)
    return open_(inbox.take(batch))


def test_items_arrive_once_and_in_order():
    outbox, inbox = Outbox(), Inbox()
    outbox.add("a")
    outbox.add("b")
    assert deliver(outbox, inbox, 0.0) == ["a", "b"]
    outbox.add("c")
    assert deliver(outbox, inbox, 1.0) == ["c"]
    assert deliver(outbox, inbox, 2.0) == []


def test_what_is_not_acknowledged_in_time_is_sent_again_and_taken_once():
    outbox, inbox = Outbox(), Inbox()
    outbox.add("a")
    assert deliver(outbox, inbox, 0.0) == ["a"]
    assert outbox.batch(RESEND_S - 0.1).items == ()
    again = outbox.batch(RESEND_S)
    assert open_([raw for _, raw in again.items]) == ["a"]
    assert inbox.take(again) == []
    outbox.acknowledge(inbox.last)
    assert len(outbox) == 0
    assert outbox.batch(100.0) == Batch()


def test_nothing_is_taken_while_an_earlier_batch_is_missing():
    outbox, inbox = Outbox(), Inbox()
    outbox.add("lost")
    outbox.sent(outbox.batch(0.0), 0.0)
    outbox.add("b")
    late = outbox.batch(1.0)
    outbox.sent(late, 1.0)
    assert inbox.take(late) == ()
    assert deliver(outbox, inbox, 1.0 + RESEND_S) == ["lost", "b"]


def test_a_new_peer_gets_everything_that_is_kept():
    outbox, old = Outbox(), Inbox()
    for item in "abc":
        outbox.add(item)
    deliver(outbox, old, 0.0)
    outbox.acknowledge(1)
    outbox.again()
    assert deliver(outbox, Inbox(), 0.1) == ["b", "c"]


def test_too_many_items_lose_the_oldest_spare_one_and_still_flow():
    outbox, inbox = Outbox(), Inbox()
    outbox.add("first")
    outbox.add("progress", spare=True)
    for number in range(KEEP - 1):
        outbox.add(number)
    assert len(outbox) == KEEP
    got = deliver(outbox, inbox, 0.0)
    assert got[:2] == ["first", 0]
    outbox.add("one more")  # no spare one is left: the oldest of all goes
    assert deliver(outbox, inbox, 0.1) == ["one more"]


def test_a_batch_stays_small_and_an_item_that_cannot_fit_is_refused():
    outbox, inbox = Outbox(), Inbox()
    half = "x" * (BATCH_CAP * 2 // 3)
    outbox.add(half)
    outbox.add(half)
    assert len(deliver(outbox, inbox, 0.0)) == 1
    assert outbox.due_at() == 0.0
    assert len(deliver(outbox, inbox, 0.0)) == 1
    with pytest.raises(ValueError, match="too big"):
        outbox.add("x" * BATCH_CAP)
