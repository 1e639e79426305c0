"""Rows to tokens: which of them are targets, and windows of T+1 so that each position's target is the token after
it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mlxtrain.data.chat import ChatTemplate
from mlxtrain.data.rows import Row, read_rows
from mlxtrain.engine.labels import UNLABELLED
from mlxtrain.errors import UserError
from mlxtrain.tokenizer import Tokenizer

LOSS_ON = ("assistant", "all")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A tokenised row: `ids` int32 (N,), and which of them are `targets`, bool (N,). The first token never is."""

    path: Path
    line: int
    kind: str
    ids: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Window:
    """T tokens and their next-token labels, int32 (T,) each; `line` is the row of the file it comes from."""

    ids: np.ndarray
    labels: np.ndarray
    line: int


@dataclass(kw_only=True)
class Report:
    """What became of a file's rows. `faults` are refused rows, each a line that names the row."""

    rows: int = 0
    tokens: int = 0
    supervised: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0
    unsupervised_rows: int = 0
    longest: int = 0
    faults: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        text = f"{self.rows:,} rows, {self.tokens:,} tokens, {self.supervised:,} supervised"
        if self.truncated_rows:
            text += (
                f"; {self.truncated_rows:,} rows cut by {self.truncated_tokens:,} tokens in all (longer than --seq-len)"
            )
        if self.unsupervised_rows:
            text += f"; {self.unsupervised_rows:,} rows dropped (nothing to learn in them)"
        return text


class Encoder:
    """Turns rows into examples with one tokenizer and chat template.

    `loss_on`: "assistant" labels the tokens of assistant turns, end-of-turn token included (of the completion, for
    prompt and completion rows; everything, for text rows); "all" labels every token after the first.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, loss_on: str = "assistant"):
        if loss_on not in LOSS_ON:
            raise UserError(f"--loss-on {loss_on!r}: expected one of {', '.join(LOSS_ON)}")
        self.tokenizer, self.template, self.loss_on = tokenizer, template, loss_on

    def encode(self, row: Row) -> Example:
        """Raises UserError, naming the row, where it cannot be rendered or its turns not be found."""
        if row.kind == "text":
            ids, targets = self._all_of(row.value["text"])
        elif row.kind == "messages":
            extra = {k: row.value[k] for k in ("tools",) if k in row.value}
            ids, targets = self._chat(row, row.value["messages"], extra)
        elif self.template is not None:
            turns = [("user", "prompt"), ("assistant", "completion")]
            ids, targets = self._chat(row, [{"role": r, "content": row.value[key]} for r, key in turns], {})
        else:
            ids, targets = self._completion(row.value["prompt"], row.value["completion"])
        if self.loss_on == "all":
            targets = np.ones(len(ids), bool)
        targets[:1] = False
        return Example(path=row.path, line=row.line, kind=row.kind, ids=ids, targets=targets)

    def _all_of(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ids = np.array(self.tokenizer.encode(text), np.int32)
        return ids, np.ones(len(ids), bool)

    def _completion(self, prompt: str, completion: str) -> tuple[np.ndarray, np.ndarray]:
        """Plain concatenation, ended by the end-of-text token, for models without a chat template."""
        ids, starts = self.tokenizer.encode_with_offsets(prompt + completion)
        eos = self.tokenizer.eos_id
        if eos is not None and (not ids or ids[-1] != eos):
            ids, starts = [*ids, eos], [*starts, len((prompt + completion).encode())]
        span = (len(prompt.encode()), len((prompt + completion).encode()))
        begins = np.array(starts)
        targets = _overlapping([span], begins, span[1])
        return np.array(ids, np.int32), targets | (begins >= span[1])

    def _chat(self, row: Row, messages: list[dict], extra: dict) -> tuple[np.ndarray, np.ndarray]:
        if self.template is None:
            raise row.fault(
                "is a chat, but the model has no chat template; give one by --chat-template FILE, or use 'text' rows"
            )
        try:
            text, spans = self.template.render_turns(messages, **extra)
        except ValueError as error:
            raise row.fault(str(error)) from None
        try:
            ids, starts = encode_rendered(self.tokenizer, text)
        except UserError as error:
            raise row.fault(str(error)) from None
        return np.array(ids, np.int32), self._turn_targets(text, spans, ids, starts)

    def _turn_targets(
        self, text: str, spans: Sequence[tuple[int, int]], ids: list[int], starts: list[int]
    ) -> np.ndarray:
        """Tokens of the turns, and the end-of-turn token that follows each (white space between included)."""
        inside, begins = _byte_spans(text, spans), np.array(starts)
        targets = _overlapping(inside, begins, len(text.encode()))
        for _, stop in inside:
            end = after = int(np.searchsorted(begins, stop))
            while end < len(ids) and ids[end] not in self.tokenizer.eog_ids and self._is_space(ids[end]):
                end += 1
            if end < len(ids) and ids[end] in self.tokenizer.eog_ids:
                targets[after : end + 1] = True
        return targets

    def _is_space(self, token: int) -> bool:
        return not self.tokenizer.is_control(token) and not self.tokenizer.token_bytes(token).strip()


def encode_rendered(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """Tokens and byte offsets of a rendered chat: special tokens are parsed, and the beginning token, which many
    templates write themselves, is added only where they did not."""
    ids, starts = tokenizer.encode_with_offsets(text, parse_special=True, add_special=False)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids, starts = [tokenizer.bos_id, *ids], [0, *starts]
    return ids, starts


def _overlapping(spans: Sequence[tuple[int, int]], begins: np.ndarray, size: int) -> np.ndarray:
    """Which tokens hold a byte of a span. One that begins before it counts: where a template puts a space before a
    turn, the space is part of the turn's first token, and that is the token a model has to produce first."""
    targets = np.zeros(len(begins), bool)
    ends = np.append(begins[1:], size)
    for start, stop in spans:
        if start < stop:
            targets[np.searchsorted(ends, start, side="right") : np.searchsorted(begins, stop)] = True
    return targets


def _byte_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Character spans, in order, as spans of the text's UTF-8 bytes."""
    at, at_bytes, result = 0, 0, []
    for start, stop in spans:
        at_bytes += len(text[at:start].encode())
        size = len(text[start:stop].encode())
        result.append((at_bytes, at_bytes + size))
        at, at_bytes = stop, at_bytes + size
    return result


def load_examples(path: str | Path, encoder: Encoder) -> tuple[list[Example], Report]:
    """Every row of a file, tokenised; rows that are refused are in the report's faults, by line."""
    examples, report = [], Report()
    for row in read_rows(path):
        try:
            if isinstance(row, UserError):
                raise row
            examples.append(encoder.encode(row))
        except UserError as fault:
            report.faults.append(str(fault))
    return examples, report


def windows(examples: Iterable[Example], seq_len: int, report: Report) -> list[Window]:
    """Windows of at most `seq_len` positions (seq_len + 1 tokens), one row a window; counts into `report`.

    A text longer than that becomes several windows that overlap by one token, so that every token after the first is a
    target once. A chat or completion is cut at the end. Windows without a target are dropped.
    """
    result = []
    for example in examples:
        report.rows += 1
        report.tokens += len(example.ids)
        report.longest = max(report.longest, len(example.ids))
        stop = len(example.ids)
        if example.kind != "text" and stop > seq_len + 1:
            report.truncated_rows += 1
            report.truncated_tokens += stop - seq_len - 1
            stop = seq_len + 1
        found = [_window(example, at, min(at + seq_len + 1, stop)) for at in range(0, max(1, stop - 1), seq_len)]
        found = [w for w in found if (w.labels != UNLABELLED).any()]
        report.supervised += sum(int((w.labels != UNLABELLED).sum()) for w in found)
        report.unsupervised_rows += not found
        result += found
    return result


def _window(example: Example, start: int, stop: int) -> Window:
    ids, targets = example.ids[start:stop], example.targets[start:stop]
    return Window(ids=ids[:-1], labels=np.where(targets[1:], ids[1:], UNLABELLED).astype(np.int32), line=example.line)
