"""What a stack says: whose line it is, and whether it only waits for others."""

from __future__ import annotations

import pytest

from ftsup.incident import stacks

SITE = "/env/lib/python3.11/site-packages"


def dump(*frames: str, current: bool = True) -> str:
    head = "Current thread 0x00007f1 (most recent call first):" if current else "Thread 0x00007f2 (most recent call first):"
    return "\n".join([head, *(f"  File {frame}" for frame in frames)])


SLEEP = dump(
    '"/home/u/train.py", line 41 in forward',
    f'"{SITE}/torch/nn/modules/module.py", line 9 in _call_impl',
    '"/home/u/train.py", line 90 in main',
)


def test_the_innermost_line_of_the_users_code_is_named() -> None:
    text = dump(
        f'"{SITE}/torch/nn/functional.py", line 7 in linear', '"/home/u/model.py", line 12 in forward', '"/home/u/train.py", line 3 in main'
    )
    assert stacks.where(stacks.main_thread(text)) == "model.py:12 in forward"


def test_without_users_code_the_innermost_line_is_named() -> None:
    assert stacks.where(stacks.main_thread(dump('"/usr/lib/python3.11/threading.py", line 324 in wait'))) == "threading.py:324 in wait"


def test_the_thread_that_got_the_signal_counts() -> None:
    text = dump('"/home/u/loader.py", line 1 in work', current=False) + "\n\n" + SLEEP
    assert stacks.where(stacks.main_thread(text)) == "train.py:41 in forward"


@pytest.mark.parametrize(
    "frame",
    [
        f'"{SITE}/torch/distributed/distributed_c10d.py", line 2800 in all_reduce',
        f'"{SITE}/torch/nn/parallel/distributed.py", line 2363 in _distributed_broadcast_coalesced',
        f'"{SITE}/torch/autograd/graph.py", line 865 in _engine_run_backward',
        f'"{SITE}/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", line 5 in foreach_all_gather',
    ],
)
def test_a_rank_in_a_collective_waits(frame: str) -> None:
    assert stacks.waits(stacks.main_thread(dump(frame, '"/home/u/train.py", line 90 in main')))


@pytest.mark.parametrize(
    "text",
    [
        SLEEP,
        dump('"/home/u/hook.py", line 2 in hook', f'"{SITE}/torch/autograd/graph.py", line 865 in _engine_run_backward'),
        dump(f'"{SITE}/torch/distributed/checkpoint/filesystem.py", line 300 in write', '"/home/u/train.py", line 90 in main'),
        "",
        "garbage\nFile x",
        "Current thread 0x1 (most recent call first):\n  <no Python frame>",
    ],
)
def test_others_do_not_wait(text: str) -> None:
    assert not stacks.waits(stacks.main_thread(text))


TORCH = f"{SITE}/torch/utils/data"
IDLE = dump(
    '"/usr/lib/python3.11/multiprocessing/connection.py", line 936 in wait',
    '"/usr/lib/python3.11/multiprocessing/queues.py", line 113 in get',
    f'"{TORCH}/_utils/worker.py", line 275 in _worker_loop',
    '"/usr/lib/python3.11/multiprocessing/process.py", line 108 in run',
)
BUSY = dump(
    '"/home/u/data.py", line 12 in __getitem__',
    f'"{TORCH}/_utils/fetch.py", line 52 in <listcomp>',
    f'"{TORCH}/_utils/worker.py", line 349 in _worker_loop',
    '"/home/u/train.py", line 105 in train',
)
READING = dump(
    '"/usr/lib/python3.11/multiprocessing/queues.py", line 113 in get',
    '"/home/u/data.py", line 12 in __getitem__',
    f'"{TORCH}/_utils/worker.py", line 349 in _worker_loop',
)
NEXT = dump(
    '"/usr/lib/python3.11/multiprocessing/queues.py", line 113 in get',
    f'"{TORCH}/dataloader.py", line 1275 in _try_get_data',
    f'"{TORCH}/dataloader.py", line 741 in __next__',
    '"/home/u/train.py", line 105 in train',
)
WITHOUT_WORKERS = dump(
    '"/home/u/data.py", line 12 in __getitem__',
    f'"{TORCH}/_utils/fetch.py", line 52 in fetch',
    f'"{TORCH}/dataloader.py", line 741 in __next__',
)


@pytest.mark.parametrize("text, works", [(IDLE, False), (BUSY, True), (READING, True), (NEXT, False), (SLEEP, False), ("", False)])
def test_which_worker_has_something_to_do(text: str, works: bool) -> None:  # noqa: FBT001
    assert stacks.works_for_loader(stacks.main_thread(text)) is works


@pytest.mark.parametrize("text, awaits", [(NEXT, True), (WITHOUT_WORKERS, False), (BUSY, False), (SLEEP, False), ("", False)])
def test_who_waits_for_a_data_loader(text: str, awaits: bool) -> None:  # noqa: FBT001
    assert stacks.awaits_loader(stacks.main_thread(text)) is awaits
