"""Schedules against PyTorch's, and their ends."""

import numpy as np
import pytest
import torch

from mlxtrain.engine.adamw import hyper_row
from mlxtrain.train.schedules import learning_rate


def test_cosine_equals_torch():
    steps, warmup, peak, final = 50, 10, 3e-4, 0.1
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps - warmup - 1, eta_min=final * peak)
    for step in range(warmup + 1, steps + 1):
        ours = learning_rate(step, peak=peak, steps=steps, warmup=warmup, schedule="cosine", final=final)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        cosine.step()


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 0), (2, 1), (5, 5), (5, 9), (100, 10)])
def test_rates_stay_within_bounds_and_end_where_they_should(schedule, steps, warmup):
    rates = [
        learning_rate(s, peak=1.0, steps=steps, warmup=warmup, schedule=schedule, final=0.2)
        for s in range(1, steps + 1)
    ]
    assert all(0 < r <= 1 for r in rates)
    rising = rates[: min(warmup, steps)]
    assert rising == [pytest.approx((i + 1) / warmup) for i in range(len(rising))]
    if steps > warmup + 1:
        assert rates[warmup] == 1 and rates[-1] == pytest.approx(1.0 if schedule == "constant" else 0.2)


def test_hyper_row_has_the_bias_corrections():
    row = hyper_row(2.0, 3, beta1=0.9, beta2=0.99, eps=1e-6, weight_decay=0.1)
    # of the betas as fp32 has them, so that at step 1 the correction cancels 1 - beta exactly
    b1, b2 = float(np.float32(0.9)), float(np.float32(0.99))
    expected = [2.0, 0.9, 0.99, 1e-6, 0.1, 1 / (1 - b1**3), 1 / (1 - b2**3)]
    assert row.tolist() == pytest.approx(expected, rel=1e-7)  # one rounding to fp32
