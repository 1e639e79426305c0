"""AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) as one function of arrays.

All that a schedule may change enters as data in one row, so that no schedule ever causes a new trace:
`hp = [lr, beta1, beta2, eps, weight_decay, 1/(1-beta1^t), 1/(1-beta2^t)]`, with t counted from 1.
"""

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from mlxtrain.engine.bake import bake

Tree = dict[str, mx.array]


def hyper_row(
    lr: float, step: int, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0
) -> mx.array:
    """The seven slots for optimizer step `step` (from 1), float32; the bias corrections are computed in double."""
    # From the betas as the update has them, rounded to fp32: the corrections then cancel their rounding.
    b1, b2 = float(np.float32(beta1)), float(np.float32(beta2))
    row = [lr, beta1, beta2, eps, weight_decay, 1 / (1 - b1**step), 1 / (1 - b2**step)]
    return mx.array(np.array(row, np.float32))


def adamw(params: Tree, grads: Tree, m: Tree, v: Tree, hp: mx.array, reset: mx.array) -> tuple[Tree, Tree, Tree]:
    """One update: new parameters and moments, float32. Decay is decoupled, eps stands outside the root.

    `reset` is 1.0 on a first step, where the moments count as zero, else 0.0.
    """
    lr, beta1, beta2, eps, decay, correct1, correct2 = (hp[i] for i in range(7))
    keep = 1 - reset
    new_p, new_m, new_v = {}, {}, {}
    for name, p in params.items():
        g = grads[name]
        new_m[name] = beta1 * keep * m[name] + (1 - beta1) * g
        new_v[name] = beta2 * keep * v[name] + (1 - beta2) * g * g
        step = (new_m[name] * correct1) / (mx.sqrt(new_v[name] * correct2) + eps)
        new_p[name] = p * (1 - lr * decay) - lr * step
    return new_p, new_m, new_v


def baked_adamw(compiled: bool | None = None) -> Callable:
    return bake(adamw, compiled)


def global_norm(grads: Tree) -> mx.array:
    """The Euclidean norm over all gradients, fp32 scalar."""
    return mx.sqrt(sum(mx.sum(g * g) for g in grads.values()))
