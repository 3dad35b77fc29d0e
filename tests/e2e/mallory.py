"""Another user of the machine, as a program: `python -m tests.e2e.mallory ACT`, JSON on its standard input; root becomes that user first.

It knocks at a leader's port in every way that takes no key, and looks at what it can see of a run. What it found it prints as JSON.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import zmq

UID = 20002
HELD = 400
"""Connections that it holds and says nothing on: more than the leader may have open."""
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
NOISE = (
    os.urandom(1000),
    b"GET / HTTP/1.0\r\n\r\n",
    GREETING + os.urandom(300),
    GREETING + b"\x06" + struct.pack(">Q", 1 << 40),
    b"\0" * 100_000,
)


def start(act: str, **given: object) -> subprocess.Popen[str]:
    """Let that user do something."""
    argv = [sys.executable, "-m", "tests.e2e.mallory", act]
    process = subprocess.Popen(argv, cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(given) + "\n")  # what it looks for must not stand in its own command line
    process.stdin.flush()
    return process


def done(process: subprocess.Popen[str], *, within_s: float) -> object:
    """What came of it."""
    out, _ = process.communicate(timeout=within_s)
    assert process.returncode == 0, out
    return json.loads(out)


# What follows runs as that user.


def plant(_context: object, *, files: list[str], folders: list[str]) -> None:
    """What was not there."""
    for path in map(Path, files):
        path.write_text("mallory's\n")
    for path in map(Path, folders):
        path.mkdir()
        path.chmod(0o777)


def knock(context: zmq.Context[zmq.Socket[bytes]], *, port: int, seconds: float, until_told: bool = False) -> dict[str, int]:
    """Noise, clients without and with other keys, and more silent connections than the leader can have. `until_told`: at least so long."""
    end, tried, held = time.monotonic() + seconds, 0, []
    dealers = [_dealer(context, port, curve=curve) for curve in (False, True)]
    while time.monotonic() < end or (until_told and not _told()):
        for noise in NOISE:
            with contextlib.suppress(OSError), socket.socket() as one:
                one.settimeout(0.1)
                one.connect(("127.0.0.1", port))
                tried += 1
                one.sendall(noise)
        held = [one for one in held if not _ended(one)]
        while len(held) < HELD:
            held.append(socket.socket())
            held[-1].settimeout(0)
            held[-1].connect_ex(("127.0.0.1", port))
            tried += 1
        time.sleep(0.1)
    for dealer in dealers:
        dealer.close()
    return {"tried": tried}


def pulse(context: zmq.Context[zmq.Socket[bytes]], *, port: int, seconds: float, times: int) -> dict[str, object]:
    """Knock for a while and rest for a while, again and again; when it knocked, by the clock that all processes share."""
    spans, tried = [], 0
    for _ in range(times):
        began = time.monotonic()
        tried += knock(context, port=port, seconds=seconds)["tried"]
        spans.append((began, time.monotonic()))
        time.sleep(seconds)
    return {"spans": spans, "tried": tried}


def listen(_context: object, *, port: int) -> None:
    """The leader's port is its own now: whoever comes hears a greeting, and then what nobody of the run says."""
    with _server(port) as listener:
        print("listens", flush=True)
        while True:
            one, _ = listener.accept()
            with one, contextlib.suppress(OSError):
                one.settimeout(0.1)
                one.sendall(GREETING)
                one.recv(1000)
                one.sendall(os.urandom(300))


def _server(port: int) -> socket.socket:
    """Somebody's connection may just go out by this port: he waits until it is free."""
    end = time.monotonic() + 20
    while True:
        try:
            return socket.create_server(("", port))
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _dealer(context: zmq.Context[zmq.Socket[bytes]], port: int, *, curve: bool) -> zmq.Socket[bytes]:
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    if curve:
        dealer.curve_serverkey = zmq.curve_keypair()[0]
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(b"\x81\xa4type\xa5hello")
    return dealer


def _told() -> bool:
    """Our standard input is closed: `done` was called."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _ended(one: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        try:
            over = one.recv(1000) == b""
        except OSError as error:
            over = error.errno not in {errno.EAGAIN, errno.ENOTCONN}
        if over:
            one.close()
        return over
    return False


def look(_context: object, *, places: list[str], secrets: list[str]) -> dict[str, list[str]]:
    """Which of these places it can look into or write to, and which secrets stand where it can read."""
    opened = [place for place in places if _can_look_into(Path(place))]
    seen = {secret for text in _readable() for secret in secrets if secret.encode() in text}
    return {"opened": opened, "seen": sorted(seen)}


def _can_look_into(place: Path) -> bool:
    for act in (lambda: list(place.iterdir()), place.read_bytes, (place / "planted").mkdir):
        try:
            act()
        except (PermissionError, NotADirectoryError, IsADirectoryError):
            continue
        return True
    return False


def _readable() -> Iterator[bytes]:
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ", "comm"):
            with contextlib.suppress(OSError):
                yield (process / name).read_bytes()


def main(act: str) -> None:
    """Become that user, and act."""
    given = json.loads(sys.stdin.readline())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with zmq.Context() as context:  # opens /dev/urandom, which some machines keep to root
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(UID)
            os.setuid(UID)
        sys.stdout.write(
            json.dumps({"plant": plant, "knock": knock, "look": look, "pulse": pulse, "listen": listen}[act](context, **given))
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
