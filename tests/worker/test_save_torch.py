"""Saves on request with real torch: DDP over gloo under torchrun, a GAN, optimizers that step in backward. The test is the node."""

from __future__ import annotations

import pytest

from ftsup.worker.beatfile import Flag
from tests.worker.node import Node

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(150)]

DDP = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from ftsup_worker import asked
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
step = 0

def save(why):
    dist.barrier()   # a rank that is not here would be missed
    print(why, step, flush=True)
    dist.barrier()

def train_one():
    global step
    step += 1
    time.sleep(0.004 * (1 + rank))
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
ASKS = """
while True:  # all ranks leave at one step: one that looked for itself would leave the others in their all_reduce
    train_one()
    if asked():
        save("asked")
    stop = torch.tensor([float(os.path.exists("finish"))])
    dist.all_reduce(stop)
    if stop:
        break
"""
SAVES_AND_EXITS = """
def handler(number, frame):
    save("handler")
    sys.exit(0)
signal.signal(signal.SIGUSR1, handler)
while True:
    train_one()
"""
SETS_A_FLAG = """
stop = False
def handler(number, frame):
    global stop
    stop = True
signal.signal(signal.SIGUSR1, handler)
while not stop:
    train_one()
save("flag")
dist.destroy_process_group()
"""


def test_ranks_that_ask_save_at_one_step_as_often_as_is_wanted(bench):
    steps = []
    with Node(bench, DDP + ASKS) as node:
        node.until(lambda beats: all(beat.beats > 3 and beat.flags & Flag.ASKS for beat in beats))
        for _ in range(2):
            n = node.save(handlers=False)
            steps.append(n)
            node.until(lambda beats, n=n: all(beat.beats > n + 2 and beat.flags & Flag.TOOK for beat in beats))
        bench.write("finish", "")
        assert node.end()[0] == 0
    assert node.said() == [f"asked {steps[0]}\nasked {steps[1]}\n"] * 2


@pytest.mark.parametrize("script,word", [(SAVES_AND_EXITS, "handler"), (SETS_A_FLAG, "flag")], ids=["saves and exits", "sets a flag"])
def test_handlers_run_at_one_step_on_every_rank_once(bench, script: str, word: str):
    with Node(bench, DDP + script) as node:
        node.until(lambda beats: all(beat.beats > 3 for beat in beats))
        assert all(beat.flags == Flag.HANDLES for beat in node.beats)
        n = node.save(handlers=True)
        code, err = node.end()
    assert (code, node.said()) == (0, [f"{word} {n}\n"] * 2), err
    assert all(beat.flags & Flag.TOOK for beat in node.beats)


ALONE = """
import os, pathlib, signal, threading
import torch
from ftsup_worker import beatfile
from ftsup_worker.beatfile import Word
torch.set_num_threads(1)
FILE = pathlib.Path(os.environ["FTSUP_BEATS"], "beat.0")
calls = []
def handler(number, frame):
    calls.append((beatfile.read(FILE).beats, threading.current_thread() is threading.main_thread()))
signal.signal(signal.SIGUSR1, handler)
def ask(n, word):
    beatfile.ask(FILE, beats=n, word=word, handlers=True)
"""
GAN = """
a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
optimizers = [torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), 0.1)]
for step in range(1, 7):
    if step == 2: ask(7, Word.PROPOSED)   # in the middle of the fourth step
    if step == 3: ask(7, Word.COMMIT)
    for model, optimizer in zip((a, b), optimizers):
        optimizer.zero_grad()
        (a(torch.ones(1, 2)).sum() + b(torch.ones(1, 2)).sum()).backward()
        optimizer.step()
        print(step, beatfile.read(FILE).beats, calls)
"""
IN_BACKWARD = """
model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(3)))
optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}
def step_now(p):
    if threaded:
        thread = threading.Thread(target=optimizers[p].step)   # as on CUDA, where another thread than the main one calls hooks
        thread.start(); thread.join()
    else:
        optimizers[p].step()
    optimizers[p].zero_grad()
for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_now)
for step in range(1, 6):
    if step == 2: ask(15, Word.PROPOSED)   # in the middle of the third backward
    if step == 3: ask(15, Word.COMMIT)
    model(torch.ones(1, 2)).sum().backward()
    print(step, len(calls), [main for _, main in calls])
"""


def test_two_beats_a_loop_and_the_handler_between_them(bench):
    bench.write("train.py", ALONE + GAN)
    done = bench.shim("train.py", env={"FTSUP_WARNING": "10"}, limit_s=140)
    lines = done.stdout.splitlines()
    assert lines[5:8] == ["3 6 []", "4 7 [(7, True)]", "4 8 [(7, True)]"], done.stderr
    assert lines[-1] == "6 12 [(7, True)]"


@pytest.mark.parametrize("threaded", [False, True])
def test_optimizers_in_backward_have_the_handler_in_the_main_thread_within_that_step(bench, threaded: bool):  # noqa: FBT001
    bench.write("train.py", f"threaded = {threaded}\n" + ALONE + IN_BACKWARD)
    done = bench.shim("train.py", env={"FTSUP_WARNING": "10"}, limit_s=140)
    assert done.stdout.splitlines() == ["1 0 []", "2 0 []", "3 1 [True]", "4 1 [True]", "5 1 [True]"], done.stderr
