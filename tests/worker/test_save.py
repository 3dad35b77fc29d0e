"""Save at beat N, the rank's part: who sees the word in time agrees and holds, and all that agreed are handed the save at one beat."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ftsup.worker import beatfile, counters
from ftsup.worker.beatfile import Beat, Flag, Word
from ftsup.worker.rank import Rank

LONG_S = 30.0


class Optimizer:
    """Anything that can be stepped."""


class Bench:
    """One rank, and the words of its supervisor."""

    def __init__(self, file: Path, *, hold_s: float = LONG_S) -> None:
        beatfile.create(file)
        self.file, self.rank, self.optimizer = file, Rank(hold_s=hold_s), Optimizer()
        self.rank.join(file, pid=1, started=2, base_step=0)

    def say(self, word: Word, n: int, *, handlers: bool = False) -> None:
        beatfile.ask(self.file, beats=n, word=word, handlers=handlers)

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.rank.optimizer_stepped(self.optimizer)

    def step(self) -> bool:
        self.beat()
        return self.rank.asked()

    @property
    def said(self) -> Beat:
        beat = beatfile.read(self.file)
        assert beat is not None
        return beat

    def until(self, seen: Callable[[Beat], bool]) -> None:
        clock = threading.Event()
        for _ in range(20_000):
            if seen(self.said):
                return
            clock.wait(0.001)
        pytest.fail(f"never seen; the last beat was {self.said}")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "beat.0")


@pytest.fixture
def hasty(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "beat.0", hold_s=0.0)


def aside(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_nobody_asks_nobody_holds(bench: Bench):
    assert [bench.step() for _ in range(5)] == [False] * 5
    assert (bench.said.ack, bench.said.flags) == (0, Flag.ASKS)


def test_a_rank_that_sees_it_in_time_agrees_and_is_asked_once_at_its_beat(bench: Bench):
    bench.beat()
    bench.say(Word.PROPOSED, 5)
    answers = [bench.step(), bench.step()]
    assert bench.said.ack == 5
    bench.say(Word.COMMIT, 5)
    answers += [bench.step() for _ in range(5)]
    assert answers == [False, False, False, True, False, False, False]  # beats 2 to 8
    assert bench.said.flags == Flag.ASKS | Flag.TOOK


def test_taking_it_is_said_for_each_save_anew(bench: Bench):
    for n in (2, 4):
        bench.say(Word.PROPOSED, n)
        bench.beat()
        assert Flag.TOOK not in bench.said.flags
        bench.say(Word.COMMIT, n)
        assert bench.step()
        assert Flag.TOOK in bench.said.flags


def test_too_late_is_no_agreement_and_no_save(bench: Bench):
    bench.beat(3)
    bench.say(Word.PROPOSED, 3)
    assert bench.step() is False
    bench.say(Word.COMMIT, 3)
    assert [bench.step(), bench.step()] == [False, False]
    assert bench.said.ack == 0


def test_a_commit_that_was_never_proposed_is_none(bench: Bench):
    bench.say(Word.COMMIT, 2)
    assert [bench.step() for _ in range(3)] == [False] * 3


@pytest.mark.parametrize("word", [Word.COMMIT, Word.ABORT])
def test_after_its_beat_a_rank_holds_for_the_word_and_looks_alive(bench: Bench, word: Word):
    bench.say(Word.PROPOSED, 1)
    answers: list[bool] = []
    thread = aside(lambda: answers.append(bench.step()))
    bench.until(lambda beat: beat.ack == 1)
    before = bench.said.activity
    bench.until(lambda beat: beat.activity > before + 5)
    assert (answers, bench.said.beats) == ([], 1)
    bench.say(word, 1)
    thread.join(LONG_S)
    assert answers == [word is Word.COMMIT]


def test_a_later_proposal_takes_the_place_of_one_that_is_held(bench: Bench):
    bench.say(Word.PROPOSED, 1)
    answers: list[bool] = []
    thread = aside(lambda: answers.extend(bench.step() for _ in range(4)))
    bench.until(lambda beat: beat.ack == 1)
    bench.say(Word.PROPOSED, 3)
    bench.until(lambda beat: beat.ack == 3)
    bench.say(Word.COMMIT, 3)
    thread.join(LONG_S)
    assert answers == [False, False, True, False]


def test_holding_has_an_end_and_takes_the_agreement_back(hasty: Bench):
    hasty.say(Word.PROPOSED, 2)
    hasty.beat()
    assert hasty.said.ack == 2
    assert hasty.step() is False
    assert hasty.said.ack == 0
    hasty.say(Word.COMMIT, 2)  # too late: it has gone on
    assert [hasty.step(), hasty.step()] == [False, False]


def test_who_gives_up_looks_once_more_and_commit_wins(hasty: Bench):
    hasty.say(Word.PROPOSED, 1)

    class Words:
        """The word changes in the moment in which the agreement was taken back."""

        def __init__(self, words: memoryview) -> None:
            self.words = words

        def __getitem__(self, place: int) -> int:
            return self.words[place]

        def __setitem__(self, place: int, value: int) -> None:
            self.words[place] = value
            if (place, value) == (counters.ACK, 0):
                hasty.say(Word.COMMIT, 1)

    hasty.rank.writer.words = Words(hasty.rank.writer.words)
    assert hasty.step() is True
    assert hasty.said.ack == 1


def test_a_signal_handler_that_raises_gets_through_a_hold_and_nothing_stays_agreed(bench: Bench):
    def handler(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR2, handler)
    bench.say(Word.PROPOSED, 1)
    main = threading.get_ident()

    def interrupt() -> None:
        bench.until(lambda beat: beat.activity > 5)
        signal.pthread_kill(main, signal.SIGUSR2)

    thread = aside(interrupt)
    try:
        with pytest.raises(InterruptedError):
            bench.beat()
    finally:
        thread.join(LONG_S)
        signal.signal(signal.SIGUSR2, before)
    assert bench.said.ack == 0
    bench.say(Word.COMMIT, 1)
    assert bench.step() is False


def test_a_script_without_an_optimizer_hears_by_its_own_beats(bench: Bench):
    bench.say(Word.PROPOSED, 2)
    bench.rank.beat(step=1)
    bench.say(Word.COMMIT, 2)
    answers = [bench.rank.asked()]
    for step in (2, 3):
        bench.rank.beat(step=step)
        answers.append(bench.rank.asked())
    assert answers == [False, True, False]


def test_beats_that_do_not_count_do_not_hold(bench: Bench):
    """Where an optimizer counts, what a script says besides may be said on one rank only."""
    bench.beat()
    bench.say(Word.PROPOSED, 1)
    bench.rank.beat(step=1)
    bench.rank.beat()
    assert (bench.said.ack, bench.said.beats) == (0, 1)


class Left(BaseException):
    """What sys.exit raises is another one of these."""


def committed(bench: Bench, *, handlers: bool) -> None:
    bench.say(Word.PROPOSED, 2, handlers=handlers)
    bench.beat()
    bench.say(Word.COMMIT, 2, handlers=handlers)


def test_a_handler_is_called_at_the_beat_once_and_what_it_raises_ends_the_script(bench: Bench):
    calls = []

    def handler() -> None:
        calls.append((bench.said.beats, Flag.TOOK in bench.said.flags))
        if len(calls) == 1:
            raise Left

    bench.rank.handler = handler
    committed(bench, handlers=True)
    with pytest.raises(Left):
        bench.beat()
    bench.beat(3)
    assert calls == [(2, True)]


def test_a_handler_is_left_alone_where_only_a_save_is_wanted_or_the_script_asks(tmp_path: Path):
    calls: list[int] = []
    for number, (handlers, asks) in enumerate([(False, False), (True, True)]):
        bench = Bench(tmp_path / f"beat.{number}")
        bench.rank.handler = lambda: calls.append(1)
        if asks:
            bench.rank.asked()
        committed(bench, handlers=handlers)
        bench.beat()
        assert Flag.TOOK not in bench.said.flags
        assert bench.rank.asked() is True
    assert calls == []


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("first", ["asks", "steps"])
def test_ranks_of_different_pace_answer_alike(tmp_path: Path, every: int, first: str):
    """Four ranks meet once a step and ask every so many steps, before or after it; words come whenever, to each rank at another time."""
    benches = [Bench(tmp_path / f"beat.{number}") for number in range(4)]
    meeting = threading.Barrier(4)
    answers: list[list[int]] = [[], [], [], []]

    def train(number: int) -> None:
        bench, luck, nap = benches[number], random.Random(number), threading.Event()
        for step in range(1, 61):
            nap.wait(luck.random() * 0.002)
            meeting.wait(LONG_S)
            if first == "steps":
                bench.beat()
            if step % every == 0 and bench.rank.asked():
                answers[number].append(step)
            if first == "asks":
                bench.beat()

    threads = [aside(lambda number=number: train(number)) for number in range(4)]
    luck, saves = random.Random(every), 0
    while any(thread.is_alive() for thread in threads) and max(bench.said.beats for bench in benches) < 40:
        n = max(bench.said.beats for bench in benches) + luck.choice((1, 2, 5))
        word = propose(benches, n, luck)
        saves += word is Word.COMMIT
        for bench in benches:
            bench.until(lambda beat, word=word, n=n: beat.beats > n + (every if word is Word.COMMIT else 0))
    for thread in threads:
        thread.join(LONG_S)
    assert answers == [answers[0]] * 4
    assert len(answers[0]) == saves > 0


def propose(benches: list[Bench], n: int, luck: random.Random) -> Word:
    """A leader in small: the words reach the ranks one after the other."""
    nap = threading.Event()
    for bench in luck.sample(benches, 4):
        bench.say(Word.PROPOSED, n)
        nap.wait(luck.random() * 0.002)
    for bench in benches:
        bench.until(lambda beat: beat.ack == n or beat.beats >= n)
    nap.wait(0.002)
    word = Word.COMMIT if all(bench.said.ack == n for bench in benches) else Word.ABORT
    for bench in luck.sample(benches, 4):
        bench.say(word, n)
        nap.wait(luck.random() * 0.002)
    return word
