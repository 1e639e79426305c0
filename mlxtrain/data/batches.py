"""Which rows make which batch: a function of the seed and the step alone, so that a run can go on from any step."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from mlxtrain.data.examples import Example, Window
from mlxtrain.engine.batch import Batch, pad_batch
from mlxtrain.errors import UserError

WIDTH_MULTIPLE = 32  # rows are padded to a multiple of this, so that few shapes occur
_SPLIT_STREAM, _ORDER_STREAM = 1, 2


def split(examples: Sequence[Example], held_out: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Training rows and held-out rows, each in the order of the file. The choice depends on the seed and the number of
    rows, never on what training draws."""
    if held_out >= len(examples):
        raise UserError(
            f"{len(examples)} usable rows, of which {held_out} would be held out; add rows or lower --val-rows"
        )
    chosen = np.random.default_rng([seed, _SPLIT_STREAM]).permutation(len(examples))[:held_out]
    held = set(chosen.tolist())
    return [e for i, e in enumerate(examples) if i not in held], [examples[i] for i in sorted(held)]


def split_document(example: Example) -> tuple[list[Example], list[Example]]:
    """A single text: its last twentieth is held out, at most 4,096 tokens, where that is two tokens or more."""
    cut = len(example.ids) - min(4096, len(example.ids) // 20)
    if example.kind != "text" or len(example.ids) - cut < 2:
        return [example], []
    parts = [(example.ids[:cut], example.targets[:cut]), (example.ids[cut:], example.targets[cut:].copy())]
    parts[1][1][0] = False  # what it follows is not in the held-out part
    first, last = (dataclasses.replace(example, ids=ids, targets=targets) for ids, targets in parts)
    return [first], [last]


def default_held_out(rows: int) -> int:
    """One row in twenty, at least one, at most 32; none where there is only one."""
    return 0 if rows < 2 else max(1, min(32, rows // 20))


class ShuffledBatches:
    """Batches over epochs, each epoch in a new order. Batches run over the end of an epoch, so all are of one size and
    every row occurs equally often."""

    def __init__(self, windows: Sequence[Window], batch_size: int, seed: int):
        if not windows:
            raise UserError("the data has no row to train on; `mlxtrain data check` tells why")
        self.windows, self.batch_size, self.seed = windows, batch_size, seed
        self._orders: dict[int, np.ndarray] = {}

    def _row(self, position: int) -> int:
        epoch, index = divmod(position, len(self.windows))
        if epoch not in self._orders:
            self._orders = {e: order for e, order in self._orders.items() if e == epoch - 1}
            self._orders[epoch] = np.random.default_rng([self.seed, _ORDER_STREAM, epoch]).permutation(
                len(self.windows)
            )
        return int(self._orders[epoch][index])

    def batch(self, step: int) -> Batch:
        """The batch of optimizer step `step`, from 1."""
        first = (step - 1) * self.batch_size
        return collate([self.windows[self._row(first + i)] for i in range(self.batch_size)])


def in_order(windows: Sequence[Window], batch_size: int) -> list[Batch]:
    """Every window once, those of like length together, for evaluation."""
    ordered = sorted(windows, key=lambda w: -len(w.ids))
    return [collate(ordered[i : i + batch_size]) for i in range(0, len(ordered), batch_size)]


def collate(windows: Sequence[Window]) -> Batch:
    return pad_batch([(w.ids, w.labels) for w in windows], WIDTH_MULTIPLE, rows=[w.line for w in windows])
