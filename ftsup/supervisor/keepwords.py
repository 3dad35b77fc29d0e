"""What a leader asks its keeper, and what it answers. Shapes only, without the weight of the checkpoint room."""

from __future__ import annotations

import msgspec

from ftsup.events import Epoch, Files, Left


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The run that this is done for."""

    run: str
    job: str
    host: str = ""
    folder: str = ""
    """The run directory."""
    wall: str = ""
    force: bool = False


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint that is sealed."""

    name: str
    step: int | None
    size_bytes: int
    took_s: float


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint that lies in quarantine."""

    name: str
    why: str
    path: str


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a pick."""

    path: str | None = None
    name: str = ""
    step: int | None = None
    why: str = ""
    files: Files | None = None
    took_s: float = 0.0
    aside: tuple[Aside, ...] = ()
    sealed: tuple[Taken, ...] = ()
    found: tuple[str, ...] | None = None
    """What was there before the run wrote anything; None: not known."""
    taken: str = ""
    """The directory belongs to another run, which is alive: nothing else was done."""
    left: tuple[Left, ...] | None = None
    """What is left behind from now on; None: as before."""
    refused: str = ""
    """Why there is none of the step that was wanted."""
    broken: str = ""
    """Nothing there can be resumed from, and waiting mends nothing."""
    note: str = ""


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one pass of sealing: at most one checkpoint is sealed or verified in it."""

    sealed: Taken | None = None
    verified: str = ""
    damaged: tuple[str, ...] = ()
    """It was read back, and is not as it was sealed: its name, and what differs."""
    removed: tuple[str, ...] = ()
    removed_bytes: int = 0
    said: dict[str, str] = {}
    """Checkpoint -> what people should know of it."""
    taken: str = ""

    @property
    def again(self) -> bool:
        """There may be more to do."""
        return self.sealed is not None or bool(self.verified)


class SealAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass of sealing needs to know."""

    folder: str
    pattern: str
    complete: str = ""
    epoch: Epoch
    me: Me
    found: tuple[str, ...] | None = None
    rate_bytes: int = 0
    """0: as fast as it can."""
    keep: int = 0
    """0: nothing is removed."""
    needed: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    """Neither sealed nor counted nor removed, unless they were written anew."""
    verified: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    ended: bool = False
    worked: bool = False
    """This run has sealed there before: that it may not now is news."""
    quiet_s: float = 0.0
    """What cannot say itself that it is whole has to be unchanged for so long, beside training."""


class PickAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What a pick needs to know."""

    folder: str
    pattern: str
    complete: str = ""
    epoch: Epoch
    me: Me
    suspects: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()
    """Not these, unless they were written anew."""
    from_step: int | None = None
    """Of this step at most, also one that was left behind; if there is none, as without it."""
    ended: bool = False
    files_s: float = 0.0
    worked: bool = False
    """This run has picked or sealed there before."""
