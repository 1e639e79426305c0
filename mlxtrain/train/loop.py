"""The loop over optimizer steps: it knows steps, events, evaluation and checkpoints, and no model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import mlx.core as mx

from mlxtrain.engine.batch import Batch
from mlxtrain.fixture import Fixture
from mlxtrain.train.events import EventLog
from mlxtrain.train.progress import Progress
from mlxtrain.train.signals import StopRequest
from mlxtrain.train.state import Arrays, StepResult, TrainState


class Trainable(Protocol):
    """What the loop asks of a recipe."""

    state: TrainState

    def step(self, batch: Batch, hp: mx.array, is_first: bool) -> StepResult: ...

    def loss_sum(self, batch: Batch, params: Arrays) -> float: ...


@dataclass(kw_only=True)
class Loop:
    """Runs a recipe to `steps`. `eval_every` and `save_every` count steps; 0 means at the ends (the end) only."""

    recipe: Trainable
    fixture: Fixture
    log: EventLog
    progress: Progress
    stop: StopRequest
    steps: int
    held_out: list[Batch]
    eval_every: int
    save_every: int
    save: Callable[[], None]
    base: Arrays | None  # weights of step 0, while their held-out loss is not known
    losses: list[float] = field(default_factory=list)
    held_out_losses: dict[int, float] = field(default_factory=dict)

    def run(self) -> None:
        """Steps until `steps` are done or a stop is asked for; saves at the end either way."""
        state = self.recipe.state
        while state.step < self.steps and self.stop.signal is None:
            self._step()
            if self.base is not None and self.stop.signal is None:
                # After a step, since the first is not kept waiting by what can be known later as well.
                self._evaluate(0, self.base)
                self.base = None
            last = state.step == self.steps
            if last or (self.eval_every and state.step % self.eval_every == 0):
                self._evaluate(state.step, state.params)
            if not last and self.save_every and state.step % self.save_every == 0:
                self._save()
        self._save()

    def _step(self) -> None:
        step, start = self.recipe.state.step + 1, perf_counter()
        result = self.recipe.step(self.fixture.inputs(step), self.fixture.hyper(step), step == 1)
        rate, peak = result.tokens / (perf_counter() - start), mx.get_peak_memory()
        self.losses.append(result.loss)
        self.log.write(
            "step",
            step=step,
            loss=result.loss,
            lr=self.fixture.learning_rate(step),
            grad_norm=result.grad_norm,
            tokens=result.tokens,
            tokens_per_s=round(rate, 1),
            peak_memory=peak,
        )
        self.progress.step(step, result.loss, rate, peak)

    def _evaluate(self, step: int, params: Arrays) -> None:
        """The mean loss of the weights that `step` steps have made, over every labelled held-out token. Given up where
        a stop is asked for."""
        start, total = perf_counter(), 0.0
        for batch in self.held_out:
            if self.stop.signal is not None:
                return
            total += self.recipe.loss_sum(batch, params)
        if not self.held_out:
            return
        loss = total / tokens_of(self.held_out)
        self.held_out_losses[step] = loss
        tokens = tokens_of(self.held_out)
        self.log.write("eval", step=step, loss=loss, tokens=tokens, seconds=round(perf_counter() - start, 3))
        self.progress.note(f"step {step}: held-out loss {loss:.4f} over {tokens:,} tokens")

    def _save(self) -> None:
        self.save()
        self.log.write("checkpoint", step=self.recipe.state.step)


def tokens_of(batches: Sequence[Batch]) -> int:
    """Labelled tokens in all."""
    return sum(batch.tokens for batch in batches)
