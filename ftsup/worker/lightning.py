"""For Lightning: saves when ftsup asks. The script that imports this has Lightning; nothing else of ftsup imports it."""

from __future__ import annotations

import os
import sys

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

from .rank import THIS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SaveWhenAsked(Callback):  # type: ignore[misc]  # Lightning is Any here
    """`Trainer(..., callbacks=[SaveWhenAsked()])`: a checkpoint as Trainer writes it, on every rank at the same step.

    It lies beside those of ModelCheckpoint (else in `default_root_dir`), named `step=<step>.ckpt`; `dirpath` chooses another place.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        super().__init__()
        self.dirpath = dirpath

    def on_train_batch_end(self, trainer: Any, *_args: Any) -> None:  # noqa: ANN401, D102 - Lightning's
        if THIS.asked():
            folder = self.dirpath or getattr(trainer.checkpoint_callback, "dirpath", None) or trainer.default_root_dir
            trainer.save_checkpoint(os.path.join(folder, f"step={trainer.global_step}.ckpt"))
            if trainer.is_global_zero:
                THIS.saved(trainer.global_step)
