"""A tiny DDP training that says when it reaches what, for bench_restart: one script for ftsup and for NVRx's launcher.

Stamps go to `stamps.jsonl` in the working directory, on the clock that the leader uses too. A file `hang` there makes the last rank
sleep, once. With --nvrx it sends NVRx's heartbeats, as its users write it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


RANK = int(os.environ["RANK"])
STAMPS = os.open("stamps.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
BORN = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def stamp(what: str, t: float | None = None) -> None:
    line = {"rank": RANK, "pid": os.getpid(), "what": what, "t": now() if t is None else t}
    os.write(STAMPS, json.dumps(line).encode() + b"\n")


stamp("born", BORN)
stamp("script")
import argparse  # noqa: E402
import datetime as dt  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

stamp("torch")
STEP_S = 0.05
SAVE_EVERY = 20


def newest() -> str:
    return str(max(Path("ckpt").glob("step*.pt"), default=""))


def save(step: int, model: torch.nn.Module) -> None:
    Path("ckpt").mkdir(exist_ok=True)
    part = Path("ckpt") / f".{step}.part"
    torch.save({"step": step, "model": model.state_dict()}, part)
    part.replace(f"ckpt/step{step:08}.pt")
    for old in sorted(Path("ckpt").glob("step*.pt"))[:-3]:
        old.unlink()


def heart() -> object:
    import nvidia_resiliency_ext.fault_tolerance as ft  # noqa: PLC0415

    client = ft.RankMonitorClient()
    client.init_workload_monitoring()
    return client


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", default="")
    parser.add_argument("--nvrx", action="store_true")
    options = parser.parse_args()
    client = heart() if options.nvrx else None
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(minutes=10))
    stamp("group")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    stamp("model")
    step = 0
    if path := options.resume or (newest() if options.nvrx else ""):
        saved = torch.load(path)
        step = saved["step"]
        model.module.load_state_dict(saved["model"])
    stamp("load")
    first = step + 1
    while not Path("finish").exists():
        step += 1
        optimizer.zero_grad()
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        if client is not None:
            client.send_heartbeat()
        if step == first:
            stamp("first step")
        if RANK == 0 and step % SAVE_EVERY == 0:
            save(step, model.module)
        if dist.get_world_size() == RANK + 1 and Path("hang").exists():
            Path("hang").unlink()
            stamp("hang")
            time.sleep(3600)
        time.sleep(STEP_S)


main()
