"""Ranks under torchrun and the words of their supervisor: the test is the node."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from types import TracebackType

import pytest

from ftsup.worker import beatfile
from ftsup.worker.beatfile import Beat, Word


class Node:
    """Some ranks under torchrun, and the words of their supervisor."""

    def __init__(self, bench, script: str, *, ranks: int = 2) -> None:
        bench.write("train.py", script)
        self.bench, self.ranks, self.out = bench, ranks, bench.home / "out"
        bench.beats.mkdir()
        self.out.mkdir()
        self.files = [bench.beats / f"beat.{rank}" for rank in range(ranks)]
        for file in self.files:
            beatfile.create(file)
        env = {"FTSUP_BEATS": str(bench.beats), "FTSUP_OUT_DIR": str(self.out), "FTSUP_WARNING": "10", "FTSUP_BASE_STEP": "0"}
        argv = ("-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--max-restarts=0", "--standalone", "-m", "ftsup_worker")
        self.process: subprocess.Popen = bench.start(*argv, "train.py", env=env | {"OMP_NUM_THREADS": "1"})

    def __enter__(self) -> Node:  # noqa: PYI034 - typing.Self is 3.11's
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate(timeout=40)

    @property
    def beats(self) -> list[Beat]:
        found = [beatfile.read(file) for file in self.files]
        assert None not in found
        return [beat for beat in found if beat]

    def until(self, seen: Callable[[list[Beat]], bool]) -> None:
        nap = threading.Event()
        for _ in range(20_000):
            if seen(self.beats):
                return
            if self.process.poll() is not None:
                break
            nap.wait(0.004)
        self.process.terminate()
        pytest.fail(f"never seen: {self.beats} {self.said()} {self.end()}")

    def say(self, word: Word, n: int, *, handlers: bool) -> None:
        for file in self.files:
            beatfile.ask(file, beats=n, word=word, handlers=handlers)

    def save(self, *, handlers: bool) -> int:
        """Both phases; N. A node that was slow to ask, so that a rank had passed N, asks for a later one, as the leader does."""
        for lead in (5, 20, 80, 320):
            n = max(beat.beats for beat in self.beats) + lead
            self.say(Word.PROPOSED, n, handlers=handlers)
            self.until(lambda beats, n=n: all(beat.ack == n or beat.beats >= n for beat in beats))
            if all(beat.ack == n for beat in self.beats):
                self.say(Word.COMMIT, n, handlers=handlers)
                return n
            self.say(Word.ABORT, n, handlers=handlers)
        pytest.fail(f"no rank agreed in time: {self.beats}")

    def said(self) -> list[str]:
        return [path.read_text() for path in sorted(self.out.glob("out.*"))]

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=80)
        return self.process.returncode, err
