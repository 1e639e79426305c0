"""What a run is at one moment, and what a step tells."""

from dataclasses import dataclass

import mlx.core as mx

Arrays = dict[str, mx.array]


@dataclass(kw_only=True)
class TrainState:
    """What continues a run: trainable weights, their moments, and how many optimizer steps are done. The order of rows
    and dropout follow from the seed and the step (data/batches.py, recipes/lora.py), so they need no state."""

    params: Arrays
    m: Arrays
    v: Arrays
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """`loss` is that of the weights before the update; `grad_norm` the global norm; `tokens` the labelled ones."""

    loss: float
    grad_norm: float
    tokens: int
