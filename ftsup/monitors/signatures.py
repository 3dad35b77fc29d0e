"""What error messages look like, one row a message: LINES of logs and of NCCL's debug files, ERRORS that Python raises.

Patterns hold on to the formats of the code that prints them (file names, brackets, prefixes), not to words: a training log may say
"timeout" or "CUDA out of memory" as often as it likes. Sources are named in `tests/data/errorfiles`. It decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ftsup.events import How, Kind
from ftsup.policy.reports import Acts

_ONCE, _STILL, _END, _NEVER = Acts.AT_ONCE, Acts.WHEN_STILL, Acts.AT_END, Acts.NEVER


class Signature(NamedTuple):
    """One message."""

    name: str
    kind: Kind
    how: How
    """What it makes of a rank that ends by it."""
    acts: Acts
    needle: str
    """Part of every such line: looking for it is fast."""
    pattern: str
    """Its group `rank` is the rank that printed it, `quiet_ms` and `limit_ms` are how long that rank has waited, and may."""
    says: str = "{text}"
    """One sentence, filled with the pattern's groups; empty: the message says it best."""


def find(rows: Sequence[Signature], text: str) -> tuple[Signature, dict[str, str]] | None:
    """The first row that the text fits, and the pattern's groups."""
    for row in rows:
        if row.needle in text and (found := re.search(row.pattern, text)):
            return row, {name: value or "" for name, value in found.groupdict().items()}
    return None


# Lines --------------------------------------------------------------------------------------------------------------------

_TORCHS, _NCCLS = "ProcessGroupNCCL.cpp:", "NCCL WARN "
_TORCH = r"(?:\[rank(?P<rank>\d+)\]:)?\[[EF](?:\d{3,4} \d\d:\d\d:\d\d\.\d+)? ProcessGroupNCCL\.cpp:\d+\] (?:\[[^\]]*\] )*"
"""torch's log prefix, and in brackets the group and the rank in it. It may follow a progress bar on its line."""
_NCCL = r"^(?:\[[^\]]+\] ?)?\S+:\d+:\d+ \[\d+\] \S+:\d+ (?:\(\w+\) )?NCCL WARN "
_IB = _NCCL + r"NET/\w+ ?: ?"
_FAILURE = _NCCL + r"Cuda failure (?:\d+ )?"
_WATCHDOG = _TORCH + r"(?:NCCL|Process group) watchdog thread terminated with exception: (?:\[Rank \d+\] )?"
_TIMEOUT = (
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+)"
    r".*?Timeout\(ms\)=(?P<limit_ms>\d+)\) ran for (?P<quiet_ms>\d+) milliseconds"
)
_TIMED_OUT = "NCCL timeout in {op} (SeqNum {seq})"
_BROKEN = (
    r"'?(?P<text>uncorrectable ECC error encountered|uncorrectable NVLink error detected during the execution|unknown error"
    r"|no CUDA-capable device is detected|system not yet initialized|hardware stack error"
    r"|Invalid access of peer GPU memory over nvlink or a hardware error"
    r"|(?:all )?CUDA-capable device(?:s|\(s\)) (?:is/)?are busy or unavailable)"
)
"""CUDA's words (cudaGetErrorString) for what a script cannot do to a GPU."""
_BUG = r"'(?P<text>an illegal (?:memory access|instruction) was encountered|misaligned address|unspecified launch failure)'"
_KERNEL = r"(?:^|\] |kernel: )"
_XIDS = "48|62|63|64|74|79|92|94|95|109|110|119|120|140"
"""Xids of hardware and firmware; the others (13, 31, 43, 45) are mostly the script's."""

LINES: tuple[Signature, ...] = (
    # from the most telling to the least, where one event prints several
    # torch's watchdog ends its process, which may take minutes (its heartbeat monitor waits 8) or never succeed
    Signature("watchdog timeout", Kind.NCCL_TIMEOUT, How.PEER, _ONCE, _TORCHS,
              _TORCH + _TIMEOUT, _TIMED_OUT),
    Signature("watchdog ends: timeout", Kind.NCCL_TIMEOUT, How.PEER, _ONCE, _TORCHS,
              _WATCHDOG + _TIMEOUT, _TIMED_OUT),
    Signature("watchdog ends: broken GPU", Kind.CUDA, How.DEVICE, _ONCE, _TORCHS,
              _WATCHDOG + r"CUDA error: " + _BROKEN, "CUDA error: {text}"),
    Signature("watchdog ends: GPU memory", Kind.GPU_MEMORY, How.EXCEPTION, _ONCE, _TORCHS,
              _WATCHDOG + r"(?P<text>CUDA error: out of memory)"),
    Signature("watchdog ends: CUDA", Kind.CUDA, How.EXCEPTION, _ONCE, _TORCHS,
              _WATCHDOG + r"(?P<text>CUDA error: .+)"),
    Signature("watchdog ends", Kind.NCCL_ERROR, How.PEER, _ONCE, _TORCHS,
              _WATCHDOG + r"(?P<text>.+)"),
    Signature("heartbeat monitor ends", Kind.NCCL_TIMEOUT, How.PEER, _ONCE, _TORCHS,
              _TORCH + r"Terminating the process after attempting to dump debug info, due to (?P<text>.+?)\.?$"),
    Signature("takes the process down", Kind.NCCL_ERROR, How.PEER, _ONCE, _TORCHS,
              _TORCH + r"(?:Some NCCL operations .*)?To avoid (?:data|this) inconsistency, we are taking",
              "NCCL operations failed or timed out"),
    Signature("watchdog stuck", Kind.NCCL_TIMEOUT, How.PEER, _STILL, _TORCHS,
              _TORCH + r"(?P<text>ProcessGroupNCCL's watchdog got stuck for \d+ seconds)"),
    Signature("asynchronous NCCL error", Kind.NCCL_ERROR, How.PEER, _STILL, _TORCHS,
              _TORCH + r"Collective WorkNCCL\(SeqNum=(?P<seq>\d+), OpType=(?P<op>\w+).* async exception: (?P<text>.+)",
              "{text}, in {op} (SeqNum {seq})"),
    # NCCL: most of this ends the communicator, but not always the training
    Signature("InfiniBand completion", Kind.NETWORK, How.PEER, _STILL, _NCCLS,
              _IB + r"Got completion from peer (?P<peer>\S+) with (?:status=|error )(?P<code>\w+(?:\(\d+\))?)",
              "InfiniBand: status {code} from peer {peer}"),
    Signature("InfiniBand fatal event", Kind.NETWORK, How.DEVICE, _STILL, _NCCLS,
              _IB + r"(?P<text>\S+ async fatal event.*)", "InfiniBand: {text}"),
    Signature("InfiniBand port", Kind.NETWORK, How.PEER, _NEVER, _NCCLS,
              _IB + r"(?P<card>\S+) Got (?:non-fatal )?async event ?: (?P<text>port error)", "InfiniBand: {text} of {card}"),
    Signature("peer closed", Kind.NCCL_ERROR, How.PEER, _STILL, _NCCLS,
              _NCCL + r"(?:socketProgress|Net) ?: (?P<text>Connection closed by remote peer \S+)", "NCCL: {text}"),
    Signature("socket failed", Kind.NCCL_ERROR, How.PEER, _STILL, _NCCLS,
              _NCCL + r"(?:socket\w+|Net) ?: (?P<text>(?:Call|Connect) to .+ failed : .+)", "NCCL: {text}"),
    Signature("NCCL: broken GPU", Kind.CUDA, How.DEVICE, _STILL, _NCCLS,
              _FAILURE + _BROKEN, "NCCL: Cuda failure '{text}'"),
    Signature("NCCL: CUDA", Kind.CUDA, How.EXCEPTION, _STILL, _NCCLS,
              _FAILURE + _BUG, "NCCL: Cuda failure '{text}'"),
    Signature("NCCL: GPU memory", Kind.GPU_MEMORY, How.EXCEPTION, _STILL, _NCCLS,
              _FAILURE + r"'(?P<text>out of memory)'", "NCCL: Cuda failure '{text}'"),
    Signature("NCCL: shared memory", Kind.HOST_MEMORY, How.PEER, _STILL, _NCCLS,
              _NCCL + r"(?P<text>Error while creating shared memory segment \S+|Error: failed to extend \S+)", "NCCL: {text}"),
    Signature("NCCL: one GPU twice", Kind.CONFIG, How.EXCEPTION, _NEVER, _NCCLS,
              _NCCL + r"(?P<text>Duplicate GPU detected : .+)", "NCCL: {text}"),
    Signature("NCCL: no interface", Kind.CONFIG, How.EXCEPTION, _NEVER, _NCCLS,
              _NCCL + r"Bootstrap ?: (?P<text>no socket interface found)", "NCCL: {text} (NCCL_SOCKET_IFNAME)"),
    # the kernel, Slurm, and processes that end by themselves
    Signature("Xid", Kind.CUDA, How.DEVICE, _STILL, "NVRM: Xid",
              _KERNEL + rf"NVRM: Xid \((?P<gpu>[^)]*)\): (?P<xid>{_XIDS}), (?P<text>.+)", "Xid {xid} of {gpu}: {text}"),
    Signature("OOM killer, as Slurm says", Kind.HOST_MEMORY, How.SIGNAL, _END, "slurmstepd",
              r"^slurmstepd(?:-\S+)?: error: (?P<text>Detected \d+ oom[_-]kill event)", "out of memory on host ({text})"),
    Signature("OOM killer", Kind.HOST_MEMORY, How.SIGNAL, _END, "ut of memory: Killed process",
              _KERNEL + r"(?:Memory cgroup o|O)ut of memory: (?P<text>Killed process \d+)", "out of memory on host ({text})"),
    Signature("data loader's bus error", Kind.HOST_MEMORY, How.SIGNAL, _END, "Unexpected bus error",
              r"^ERROR: Unexpected bus error encountered in worker\. This might be caused by insufficient shared memory",
              "a data loader ran out of shared memory"),
    Signature("C++ exception: broken GPU", Kind.CUDA, How.DEVICE, _END, "what():",
              r"^ *what\(\): +CUDA error: " + _BROKEN, "CUDA error: {text}"),
    Signature("C++ exception: CUDA", Kind.CUDA, How.EXCEPTION, _END, "what():", r"^ *what\(\): +(?P<text>CUDA error: .+)"),
    Signature("C++ exception", Kind.USER, How.SIGNAL, _END, "what():", r"^ *what\(\): +(?P<text>.+)"),
)  # fmt: skip


# Errors -------------------------------------------------------------------------------------------------------------------

_CUDA = r"^(?:torch\.AcceleratorError|RuntimeError): CUDA error: "
_DIST = r"(?s)^torch\.distributed\.DistBackendError: .*"
_OS = r"^(?:OSError|BlockingIOError|ConnectionAbortedError): "
_DISKS = "5|19|28|30|52|61|107|108|116|121|122|123"
"""EIO, ENODEV, ENOSPC, EROFS, EBADE, ENODATA, ENOTCONN, ESHUTDOWN (an evicted Lustre client), ESTALE, EREMOTEIO, EDQUOT, ENOMEDIUM."""

ERRORS: tuple[Signature, ...] = (
    Signature("GPU memory", Kind.GPU_MEMORY, How.EXCEPTION, _END, "CUDA out of memory",
              r"^(?:torch\.(?:cuda\.)?OutOfMemoryError|RuntimeError): CUDA out of memory\. ", ""),
    Signature("CUDA: GPU memory", Kind.GPU_MEMORY, How.EXCEPTION, _END, "CUDA error", _CUDA + r"out of memory", ""),
    Signature("CUDA: broken GPU", Kind.CUDA, How.DEVICE, _END, "CUDA error", _CUDA + _BROKEN, ""),
    Signature("CUDA", Kind.CUDA, How.EXCEPTION, _END, "CUDA error", _CUDA, ""),
    Signature("no GPU", Kind.CUDA, How.DEVICE, _END, "No CUDA GPUs", r"^RuntimeError: No CUDA GPUs are available", ""),
    Signature("NCCL: broken GPU", Kind.CUDA, How.DEVICE, _END, "Cuda failure",
              _DIST + r"Cuda failure (?:\d+ )?" + _BROKEN, "NCCL: Cuda failure '{text}'"),
    Signature("NCCL: GPU memory", Kind.GPU_MEMORY, How.EXCEPTION, _END, "Cuda failure",
              _DIST + r"Cuda failure (?:\d+ )?'(?P<text>out of memory)'", "NCCL: Cuda failure '{text}'"),
    Signature("NCCL: shared memory", Kind.HOST_MEMORY, How.EXCEPTION, _END, "shared memory segment",
              _DIST + r"(?P<text>Error while creating shared memory segment \S+)", "NCCL: {text}"),
    Signature("NCCL: usage", Kind.CONFIG, How.EXCEPTION, _END, "ncclInvalid",
              _DIST + r"\bncclInvalid(?:Usage|Argument)\b.*\nLast error:\n(?P<text>[^\n]+)", "NCCL: {text}"),
    Signature("NCCL timeout", Kind.NCCL_TIMEOUT, How.PEER, _END, "Watchdog caught", _DIST + _TIMEOUT, _TIMED_OUT),
    Signature("NCCL error", Kind.NCCL_ERROR, How.PEER, _END, "Last error:",
              _DIST + r"Last error:\n(?P<text>[^\n]+)", "NCCL: {text}"),
    Signature("host memory", Kind.HOST_MEMORY, How.EXCEPTION, _END, "",
              r"^(?:MemoryError\b|OSError: \[Errno 12\] |RuntimeError: \[enforce fail at alloc_cpu\.cpp:\d+\] .*DefaultCPUAllocator)", ""),
    Signature("data loader killed", Kind.HOST_MEMORY, How.EXCEPTION, _END, "DataLoader worker",
              r"^RuntimeError: DataLoader worker \(pid \d+\) is killed by signal: (?:Killed|Bus error)\b", ""),
    Signature("shared memory", Kind.HOST_MEMORY, How.EXCEPTION, _END, "[Errno 28]", _OS + r"\[Errno 28\] [^:]+: '/dev/shm/", ""),
    Signature("file system", Kind.FILES, How.DISK, _END, "[Errno ", _OS + rf"\[Errno (?:{_DISKS})\] ", ""),
    Signature("file system, in torch.save", Kind.FILES, How.DISK, _END, "inline_container",
              r"^RuntimeError: \[enforce fail at inline_container\.cc:\d+\] .*(?:unexpected pos \d+ vs \d+|file write failed)",
              "the file system did not take what torch.save wrote"),
    Signature("port", Kind.CONFIG, How.PEER, _END, "EADDRINUSE",
              r"^torch\.distributed\.DistNetworkError: The server socket has failed to listen on any local network address\.", ""),
)  # fmt: skip
"""Read against `type: message`. What fits none is the script's own error, or a peer's death (`faults`)."""
