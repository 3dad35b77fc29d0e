"""Which code a grant runs: commit and dirty diff of a directory, and whether they changed. Knows git's commands, nothing of runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ftsup import proc

DEADLINE_S = 10.0
DIFF_CAP = 1024 * 1024
"""Characters of a diff that are kept: a generated file in it must not fill the run directory."""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """A commit and what differs from it."""

    commit: str
    diff: str = ""
    untracked: tuple[str, ...] = ()
    """Names of files that git does not know."""

    @property
    def dirty(self) -> bool:
        """Not what the commit says."""
        return bool(self.diff or self.untracked)


def look(folder: Path) -> Code | None:
    """The code in a folder; None: no git, no repository, no commit yet, or no answer in time."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    diff = _git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD") or ""
    if len(diff) > DIFF_CAP:
        diff = diff[:DIFF_CAP] + "\n[cut here]\n"
    untracked = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", ".") or ""
    return Code(commit=commit.strip(), diff=diff, untracked=tuple(name for name in untracked.split("\0") if name)[:100])


def change(old: Code, new: Code) -> str:
    """What became of the code since, as a sentence; empty: nothing."""
    if old.commit != new.commit:
        return f"the code changed: {old.commit[:12]} before, {new.commit[:12]} now"
    return "the code changed: the same commit, other local changes" if old != new else ""


def record(folder: Path, *, record_dir: Path, grant: int) -> str:
    """Write which code this grant runs beside those before it (`submit.json`, `1.json`, ...); what changed since."""
    now = look(folder)
    if now is None:
        return ""
    record_dir.mkdir(mode=0o700, exist_ok=True)
    earlier = [record_dir / f"{number}.json" for number in range(grant - 1, 0, -1)] + [record_dir / "submit.json"]
    found = next((path for path in earlier if path.exists()), None)
    (record_dir / f"{grant}.json").write_bytes(msgspec.json.encode(now))
    return change(msgspec.json.decode(found.read_bytes(), type=Code), now) if found else ""


def _git(folder: Path, *words: str) -> str | None:
    """Without locks, prompts or the user's pager."""
    done = proc.run(["git", "--no-optional-locks", "-C", str(folder), *words], deadline_s=DEADLINE_S)
    return done.out if done.ok else None
