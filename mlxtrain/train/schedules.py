"""Learning rates as pure functions of the step."""

import math


def learning_rate(
    step: int, *, peak: float, steps: int, warmup: int = 0, schedule: str = "cosine", final: float = 0.1
) -> float:
    """The rate of optimizer step `step`, from 1 to `steps`.

    It rises linearly to `peak` at step `warmup`, then falls to `final * peak` at the last step: along half a cosine
    ("cosine"), in a line ("linear"), or not at all ("constant").
    """
    if step <= warmup:
        return peak * step / warmup
    if schedule == "constant" or steps <= warmup + 1:
        return peak
    done = min(1.0, (step - warmup - 1) / (steps - warmup - 1))
    level = 0.5 * (1 + math.cos(math.pi * done)) if schedule == "cosine" else 1 - done
    return peak * (final + (1 - final) * level)
