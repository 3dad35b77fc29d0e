"""What runs beside the training code. A script may use it, and need not.

    from ftsup.worker import asked, beat, phase, saved

    beat(step=step)                  alive, at this step (without it: counted by torch's optimizer hook)
    with phase("evaluation"): ...    first_step, evaluation, checkpoint: parts with a time limit of their own
    if asked(): save(); saved(step)  true once when a save is wanted now, on every rank at the same step; save and go on

`huggingface.SaveWhenAsked` and `lightning.SaveWhenAsked` are the last line as callbacks of HF Trainer and Lightning.

Outside of a run all of it does nothing. Standard library only, Python >= 3.9, relative imports only: this folder is copied into the run
directory as `ftsup_worker` (the training environment needs no ftsup), put on PYTHONPATH, and torchrun starts its `__main__.py`.

What the shim reads from its environment, all set by the node supervisor:

    FTSUP_BEATS         directory of the attempt in node-local memory: beat.<rank> (exists), exit.<rank>.json, stacks.<rank>
    FTSUP_OUT_DIR       where the rank's stdout and stderr go: out.<rank>, and NCCL's warnings: nccl.<rank>; unset: they stay as they are
    FTSUP_SUPERVISOR    pid of the node supervisor (the child subreaper): set, a rank dies with torchrun
    FTSUP_BASE_STEP     the step that training starts from, counted on by the hook: 0, or the checkpoint's; unset: steps are unknown
    FTSUP_RESUME_FROM   the checkpoint to resume from; not read here: for the script
    FTSUP_MARK          run/job/node/epoch; not read here: the sweep finds processes by it
    FTSUP_WARNING       number of the signal that Slurm sends before the time limit; the shim finds it ignored, and keeps a handler that the
                        script sets until all ranks are at one step; unset: a handler is Python's own affair
    RANK                torchrun's
"""

from __future__ import annotations

import sys as _sys

# Both names are one module, whichever is imported first: the counters live in it.
_twin = "ftsup.worker" if __name__ == "ftsup_worker" else "ftsup_worker"
if _twin in _sys.modules:
    for _name in [name for name in _sys.modules if name == _twin or name.startswith(_twin + ".")]:
        _sys.modules[__name__ + _name[len(_twin) :]] = _sys.modules[_name]
else:
    from .rank import THIS as _THIS

    beat = _THIS.beat
    phase = _THIS.phase
    saved = _THIS.saved
    asked = _THIS.asked

    __all__ = ["asked", "beat", "phase", "saved"]
