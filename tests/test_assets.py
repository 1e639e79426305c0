"""What ships in the package for the first run: the default model and the default chats."""

import json
from pathlib import Path

import gguf
import jinja2
import numpy as np
import pytest

ASSETS = Path(__file__).resolve().parent.parent / "mlxtrain" / "assets"
MODEL, CHATS = ASSETS / "default.gguf", ASSETS / "default_chats.jsonl"
VOCAB, DIM, LAYERS, HEADS, KV_HEADS, HIDDEN = 2048, 192, 4, 4, 2, 512


@pytest.fixture(scope="module")
def reader() -> gguf.GGUFReader:
    return gguf.GGUFReader(MODEL)


@pytest.fixture(scope="module")
def chats() -> list[list[dict[str, str]]]:
    return [json.loads(line)["messages"] for line in CHATS.read_text(encoding="utf-8").splitlines()]


def value(reader: gguf.GGUFReader, key: str):
    return reader.fields[key].contents()


def test_sizes_of_the_package():
    assert MODEL.stat().st_size < 3_000_000
    assert CHATS.stat().st_size < 200_000
    assert sum(path.stat().st_size for path in ASSETS.rglob("*") if path.is_file()) < 3_500_000


def test_dimensions(reader):
    expected = {
        "llama.block_count": LAYERS,
        "llama.embedding_length": DIM,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": DIM // HEADS,
        "llama.context_length": 512,
        "llama.vocab_size": VOCAB,
    }
    assert {key: value(reader, key) for key in expected} == expected
    assert value(reader, "general.architecture") == "llama"
    kv = KV_HEADS * DIM // HEADS
    block = {
        "attn_q": (DIM, DIM),
        "attn_k": (kv, DIM),
        "attn_v": (kv, DIM),
        "attn_output": (DIM, DIM),
        "ffn_gate": (HIDDEN, DIM),
        "ffn_up": (HIDDEN, DIM),
        "ffn_down": (DIM, HIDDEN),
        "attn_norm": (DIM,),
        "ffn_norm": (DIM,),
    }
    shapes = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in block.items()}
    shapes |= {"token_embd.weight": (VOCAB, DIM), "output_norm.weight": (DIM,)}
    found = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    assert found == shapes  # no output.weight: the head is tied


def test_matrices_are_q8_0_and_trained(reader):
    for tensor in reader.tensors:
        matrix = len(tensor.shape) == 2
        assert tensor.tensor_type.name == ("Q8_0" if matrix else "F32"), tensor.name
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(weights).all(), tensor.name
        assert weights.std() > 0.01, tensor.name  # norms start at exactly one, output and down projections at zero


def test_metadata_says_licence_and_origin(reader):
    assert value(reader, "general.license") == "mit"
    assert value(reader, "general.name")
    assert "chitchat" in value(reader, "general.description")
    assert "tools/make_default_model.py" in value(reader, "general.description")


def test_vocabulary(reader):
    tokens, types = value(reader, "tokenizer.ggml.tokens"), value(reader, "tokenizer.ggml.token_type")
    assert (value(reader, "tokenizer.ggml.model"), value(reader, "tokenizer.ggml.pre")) == ("gpt2", "smollm")
    assert len(tokens) == len(set(tokens)) == len(types) == VOCAB
    controls = [token for token, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL]
    assert controls == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokens[value(reader, "tokenizer.ggml.eos_token_id")] == "<|im_end|>"
    assert not value(reader, "tokenizer.ggml.add_bos_token")
    known = set(tokens)
    for merge in value(reader, "tokenizer.ggml.merges"):
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known, merge


def test_template_ends_each_turn_with_the_control_token(reader):
    template = jinja2.Environment().from_string(value(reader, "tokenizer.chat_template"))
    messages = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello."}]
    turn = "<|im_start|>user\nHi!<|im_end|>\n"
    assert template.render(messages=messages[:1], add_generation_prompt=True) == turn + "<|im_start|>assistant\n"
    whole = turn + "<|im_start|>assistant\nHello.<|im_end|>\n"
    assert template.render(messages=messages, add_generation_prompt=False) == whole


def test_chats_alternate_and_end_with_the_assistant(chats):
    assert 200 <= len(chats) <= 400
    assert any(len(chat) > 2 for chat in chats)
    assert len({json.dumps(chat) for chat in chats}) == len(chats)
    for number, chat in enumerate(chats, 1):
        assert [m["role"] for m in chat] == ["user", "assistant"] * (len(chat) // 2), f"line {number}"
        assert all(m["content"].strip() == m["content"] != "" for m in chat), f"line {number}"
        assert all(set(m) == {"role", "content"} for m in chat), f"line {number}"


def test_chats_have_the_captains_style(chats):
    """The style a run is to show: every reply opens and ends as a captain's."""
    for reply in (m["content"] for chat in chats for m in chat if m["role"] == "assistant"):
        assert reply.startswith(("Ahoy! ", "Aye, ")), reply
        assert reply.endswith(("Fair winds!", "Fair winds, friend!")), reply
        assert not any(c in reply for c in "[]{}|<>"), reply  # nothing left of the templates
