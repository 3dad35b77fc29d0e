"""For HF Trainer: saves when ftsup asks. The script that imports this has transformers; nothing else of ftsup imports it."""

from __future__ import annotations

from transformers import TrainerCallback

from .rank import THIS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class SaveWhenAsked(TrainerCallback):  # type: ignore[misc]  # transformers is Any here
    """`Trainer(..., callbacks=[SaveWhenAsked()])`: a checkpoint as Trainer writes it, on every rank at the same step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> Any:  # noqa: ANN401, ARG002, D102 - Trainer's
        if THIS.asked():
            control.should_save = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> Any:  # noqa: ANN401, ARG002, D102 - Trainer's
        if state.is_world_process_zero:
            THIS.saved(state.global_step)
        return control
