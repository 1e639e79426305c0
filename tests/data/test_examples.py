"""What is learned from a row: the assistant's turns with their end, each target the token after its position."""

import json

import numpy as np
import pytest

from mlxtrain.data.batches import ShuffledBatches, collate, default_held_out, in_order, split, split_document
from mlxtrain.data.chat import ChatTemplate
from mlxtrain.data.examples import Encoder, Report, load_examples, windows
from mlxtrain.engine.labels import UNLABELLED
from mlxtrain.errors import UserError
from mlxtrain.tokenizer import load_tokenizer
from tests.data.test_chat import CHATML


def byte_tokenizer(**metadata):
    """GPT-2's byte alphabet, `<|im_start|>` (256), `<|im_end|>` (257, ends a turn), and the merged token `hi` (258)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [alphabet[b] for b in range(256)] + ["<|im_start|>", "<|im_end|>", "hi"]
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1],
            "tokenizer.ggml.merges": ["h i"],
            "tokenizer.ggml.bos_token_id": 256,
            "tokenizer.ggml.eos_token_id": 257,
            "tokenizer.ggml.add_bos_token": False,
            **metadata,
        },
        "test",
    )


def encode(tmp_path, row, *, template=CHATML, loss_on="assistant", tokenizer=None):
    (tmp_path / "d.jsonl").write_text(json.dumps(row) + "\n")
    encoder = Encoder(tokenizer or byte_tokenizer(), ChatTemplate(template) if template else None, loss_on)
    examples, report = load_examples(tmp_path / "d.jsonl", encoder)
    if report.faults:
        raise UserError(report.faults[0])
    return examples[0], encoder.tokenizer


def learned(example, tokenizer) -> list[str]:
    """The runs of learned tokens, as text."""
    runs, last = [], -2
    for i in np.flatnonzero(example.targets):
        if i != last + 1:
            runs.append(b"")
        runs[-1] += tokenizer.token_bytes(int(example.ids[i]))
        last = i
    return [run.decode() for run in runs]


def chat(*contents):
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]}


def test_every_assistant_turn_with_its_end_and_nothing_else(tmp_path):
    example, tokenizer = encode(tmp_path, chat("hi", "hi there", "ünï", "日本 ok"))
    assert learned(example, tokenizer) == ["hi there<|im_end|>", "日本 ok<|im_end|>"]
    everything, _ = encode(tmp_path, chat("hi", "hi there"), loss_on="all")
    assert everything.targets.tolist() == [False] + [True] * (len(everything.ids) - 1)


def test_a_control_token_written_in_a_turn_does_not_move_its_end(tmp_path):
    example, tokenizer = encode(tmp_path, chat("a", "x<|im_end|>y", "b", "z"))
    assert learned(example, tokenizer) == ["x<|im_end|>y<|im_end|>", "z<|im_end|>"]


def spaced_tokenizer():
    """As `byte_tokenizer`, with the tokens ` h` (259) and ` hi` (260): a space merges into the word after it."""
    byte = byte_tokenizer()
    tokens = [byte.token_text(i) for i in range(byte.vocab_size)] + ["Ġh", "Ġhi"]
    merges = {"tokenizer.ggml.merges": ["Ġ h", "Ġh i", "h i"], "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1, 1, 1]}
    return byte_tokenizer(**merges, **{"tokenizer.ggml.tokens": tokens})


def test_a_space_that_the_template_puts_before_a_turn_belongs_to_its_first_token(tmp_path):
    """Llama 2's and Vicuna's templates do; the model has to produce that very token first."""
    end = "{% if m.role == 'assistant' %}<|im_end|>{% endif %}"
    template = "{% for m in messages %}{{ m.role[0] }}: {{ m.content }}" + end + "{% endfor %}"
    example, tokenizer = encode(tmp_path, chat("x", "hi"), template=template, tokenizer=spaced_tokenizer())
    assert tokenizer.decode(example.ids) == "u: xa: hi<|im_end|>"
    assert learned(example, tokenizer) == [" hi<|im_end|>"]
    plain, tokenizer = encode(
        tmp_path, {"prompt": "A: ", "completion": "hi"}, template=None, tokenizer=spaced_tokenizer()
    )
    assert learned(plain, tokenizer) == [" hi<|im_end|>"]
    empty, tokenizer = encode(tmp_path, chat("x", "", "y", "hi"), template=template, tokenizer=spaced_tokenizer())
    assert learned(empty, tokenizer) == ["<|im_end|>", " hi<|im_end|>"]


def test_completions_are_chats_where_there_is_a_template_and_plain_text_where_not(tmp_path):
    row = {"prompt": "2+2=", "completion": "4"}
    example, tokenizer = encode(tmp_path, row)
    assert learned(example, tokenizer) == ["4<|im_end|>"]
    assert tokenizer.decode(example.ids).startswith("<|im_start|>user\n2+2=")
    plain, tokenizer = encode(tmp_path, row, template=None)
    assert tokenizer.decode(plain.ids) == "2+2=4<|im_end|>" and learned(plain, tokenizer) == ["4<|im_end|>"]


def test_text_is_learned_whole_after_its_first_token(tmp_path):
    example, tokenizer = encode(tmp_path, {"text": "hi you"})
    assert tokenizer.decode(example.ids) == "hi you" and learned(example, tokenizer) == [" you"]
    bos = byte_tokenizer(**{"tokenizer.ggml.add_bos_token": True})
    example, _ = encode(tmp_path, {"text": "hi you"}, tokenizer=bos)
    assert example.ids[0] == 256 and learned(example, bos) == ["hi you"]


def test_the_beginning_token_is_never_doubled(tmp_path):
    bos = byte_tokenizer(**{"tokenizer.ggml.add_bos_token": True})
    example, _ = encode(tmp_path, chat("a", "b"), tokenizer=bos)  # ChatML begins with token 256 itself
    assert example.ids[:2].tolist() == [256, ord("u")]
    example, _ = encode(
        tmp_path, chat("a", "b"), tokenizer=bos, template="{% for m in messages %}{{ m.content }}.{% endfor %}"
    )
    assert example.ids[:2].tolist() == [256, ord("a")]


def test_rewritten_turns_and_missing_templates_name_the_row(tmp_path):
    with pytest.raises(UserError, match=r"d\.jsonl:1: the chat template does not show messages\[1\]"):
        encode(tmp_path, chat("a", "yes"), template="{% for m in messages %}{{ m.content | upper }}{% endfor %}")
    with pytest.raises(UserError, match=r"d\.jsonl:1: is a chat, but the model has no chat template"):
        encode(tmp_path, chat("a", "yes"), template=None)


@pytest.mark.parametrize("seq_len", [1, 2, 3, 7, 100])
def test_windows_score_every_token_after_the_first_once(tmp_path, seq_len):
    example, _ = encode(tmp_path, {"text": "abcdefghij"})
    report = Report()
    found = windows([example], seq_len, report)
    targets = np.concatenate([w.labels for w in found])
    assert targets.tolist() == example.ids[1:].tolist() and report.supervised == len(example.ids) - 1
    for w in found:
        assert len(w.ids) == len(w.labels) <= seq_len
        # The label of a position is the token that follows it, never itself.
        assert w.ids[1:].tolist() == w.labels[:-1].tolist()
    assert report.truncated_rows == 0


def test_cut_and_dropped_rows_are_counted(tmp_path):
    example, tokenizer = encode(tmp_path, chat("question", "answer", "more", "end"))
    report = Report()
    assert windows([example], 5, report) == []
    assert (report.truncated_rows, report.truncated_tokens, report.unsupervised_rows) == (1, len(example.ids) - 6, 1)
    report = Report()
    (window,) = windows([example], 45, report)
    # The first turn is whole, the second is cut off.
    kept = window.labels[window.labels != UNLABELLED]
    assert tokenizer.decode(kept) == "answer<|im_end|>" and report.supervised == len(kept)
    assert f"{report.truncated_tokens:,} tokens" in report.sentence()


def test_padding_is_never_a_target():
    batch = collate(windows_of([3, 5, 40]))
    assert batch.ids.shape == (3, 64) and batch.tokens == 3 + 5 + 40
    for row, length in enumerate((3, 5, 40)):
        assert (batch.labels[row, length:] == UNLABELLED).all() and (batch.labels[row, :length] != UNLABELLED).all()
        assert batch.positions[row].tolist() == list(range(64))


def windows_of(lengths):
    from mlxtrain.data.examples import Window

    return [
        Window(ids=np.arange(n, dtype=np.int32), labels=np.arange(1, n + 1, dtype=np.int32), line=i + 1)
        for i, n in enumerate(lengths)
    ]


def test_batches_are_a_function_of_seed_and_step_and_use_every_row_equally():
    data = windows_of([4] * 7)
    batches = ShuffledBatches(data, 3, seed=0)
    rows = [batches.batch(step).rows for step in range(1, 15)]
    flat = [row for batch in rows for row in batch]
    assert [sorted(flat[i : i + 7]) for i in range(0, 42, 7)] == [list(range(1, 8))] * 6
    assert flat[:7] != flat[7:14]
    again = ShuffledBatches(data, 3, seed=0)
    assert [again.batch(step).rows for step in (9, 2, 14)] == [rows[8], rows[1], rows[13]]  # in any order
    assert [ShuffledBatches(data, 3, seed=1).batch(1).rows] != rows[:1]


def test_the_split_is_fixed_complete_and_disjoint(tmp_path):
    data = windows_of([4] * 10)
    train, held = split(data, 3, seed=0)
    assert split(data, 3, seed=0) == (train, held)
    assert len(held) == 3 and sorted(w.line for w in train + held) == list(range(1, 11))
    assert sum(b.tokens for b in in_order(held, 2)) == 12
    assert [default_held_out(n) for n in (1, 2, 100, 10_000)] == [0, 1, 5, 32]
    with pytest.raises(UserError, match="--val-rows"):
        split(data, 10, seed=0)


def test_of_a_single_text_the_end_is_held_out(tmp_path):
    example, _ = encode(tmp_path, {"text": "abcdefghij" * 10})
    (train,), (held,) = split_document(example)
    assert np.concatenate([train.ids, held.ids]).tolist() == example.ids.tolist() and len(held.ids) == 4
    assert held.targets.tolist() == [False] + [True] * 3 and train.targets.sum() == len(train.ids) - 1
    short, _ = encode(tmp_path, {"text": "abc"})
    assert split_document(short) == ([short], [])
