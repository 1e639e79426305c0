"""A fixture owns what changes from step to step: the inputs and the hyper-parameter row. The engine knows no
schedule."""

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from mlxtrain.config import LoraConfig
from mlxtrain.data.batches import ShuffledBatches
from mlxtrain.engine.adamw import hyper_row
from mlxtrain.engine.batch import Batch
from mlxtrain.train.schedules import learning_rate


class Fixture(Protocol):
    """What a run asks for at each optimizer step, counted from 1."""

    def inputs(self, step: int) -> Batch: ...

    def learning_rate(self, step: int) -> float: ...

    def hyper(self, step: int) -> mx.array:
        """The seven slots of `engine.adamw`: float32 (7,)."""
        ...


@dataclass(frozen=True, kw_only=True)
class StandardFixture:
    """Shuffled batches of a data set, warm-up and decay, constant betas."""

    batches: ShuffledBatches
    config: LoraConfig

    def inputs(self, step: int) -> Batch:
        return self.batches.batch(step)

    def learning_rate(self, step: int) -> float:
        c = self.config
        warmup = min(100, c.steps // 10) if c.warmup is None else c.warmup
        return learning_rate(step, peak=c.lr, steps=c.steps, warmup=warmup, schedule=c.schedule, final=c.final_lr)

    def hyper(self, step: int) -> mx.array:
        c = self.config
        return hyper_row(
            self.learning_rate(step), step, beta1=c.beta1, beta2=c.beta2, eps=c.eps, weight_decay=c.weight_decay
        )
