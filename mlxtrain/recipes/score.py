"""Loss and perplexity of a data file under a model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxtrain.base import Base
from mlxtrain.data.batches import in_order
from mlxtrain.data.examples import Encoder, Report, load_examples, windows
from mlxtrain.errors import UserError
from mlxtrain.recipes.served import served_decoder
from mlxtrain.train.loop import tokens_of

DEFAULT_SEQ_LEN = 1024


@dataclass(frozen=True, kw_only=True)
class Score:
    """`loss` is the mean negative log-likelihood in nats over `tokens` labelled tokens."""

    loss: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss) if self.loss < 700 else math.inf


def score(
    gguf: Path,
    data: Path,
    adapter: Path | None = None,
    *,
    seq_len: int | None = None,
    batch_size: int = 4,
    loss_on: str = "assistant",
    chat_template: Path | None = None,
    dtype: str = "auto",
    warn: Callable[[str], None] = print,
) -> tuple[Score, Report]:
    """Score every row once. Raises UserError for the first bad row, or where no token counts."""
    base = Base(gguf, chat_template)
    context = base.decoder(seq_len).context
    seq_len = seq_len or min(DEFAULT_SEQ_LEN, context)
    examples, loaded = load_examples(data, Encoder(base.tokenizer, base.template, loss_on))
    if loaded.faults:
        raise UserError(loaded.faults[0])
    report = Report()
    batches = in_order(windows(examples, seq_len, report), batch_size)
    if not batches:
        raise UserError(f"{data}: holds no token to score (a text needs two tokens, a chat an assistant's turn)")
    decoder, params = served_decoder(base, adapter, dtype, seq_len, warn)
    tokens = tokens_of(batches)
    return Score(loss=sum(decoder.loss_sum(batch, params) for batch in batches) / tokens, tokens=tokens), report
