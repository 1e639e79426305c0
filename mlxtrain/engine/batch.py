"""What enters a step as data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxtrain.engine.labels import UNLABELLED


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of tokens with their positions and next-token labels, each int32 (B, T).

    `labels[b, t]` is the token after `ids[b, t]`, or UNLABELLED. Padding stands at the end of a row and is never
    labelled, so causal attention keeps it from every real token. `rows` says which rows of the data these are.
    """

    ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    rows: tuple[int, ...] = field(default=())

    @property
    def tokens(self) -> int:
        """How many tokens are labelled."""
        return int((self.labels != UNLABELLED).sum())


def pad_batch(windows: Sequence[tuple[np.ndarray, np.ndarray]], multiple: int, rows: Sequence[int] = ()) -> Batch:
    """Windows of (ids T, labels T), padded on the right to one width, a multiple of `multiple`, so that few shapes
    occur."""
    width = -(-max(len(ids) for ids, _ in windows) // multiple) * multiple
    ids = np.zeros((len(windows), width), np.int32)
    labels = np.full((len(windows), width), UNLABELLED, np.int32)
    for row, (window_ids, window_labels) in enumerate(windows):
        ids[row, : len(window_ids)] = window_ids
        labels[row, : len(window_labels)] = window_labels
    positions = np.broadcast_to(np.arange(width, dtype=np.int32), ids.shape)
    return Batch(ids=ids, positions=positions, labels=labels, rows=tuple(rows))
