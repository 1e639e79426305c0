"""Logits against mlx-lm's model classes: a second reference, written from the same papers' Hugging Face models.

It stores in other ways what GGUF stores: llama's query and key rows in their original order, Gemma's norms less one.
"""

import importlib
import math
import re
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from mlxtrain.engine.batch import Batch
from mlxtrain.engine.streamed import StreamedDecoder
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.config import decoder_config
from mlxtrain.models.weights import Weights
from tests.tiny import CONTEXT, VOCAB, WINDOW, factor_table

# Logits deviate by 2.5, and fp32 sums in another order by some 1e-6 of that a layer.
TOLERANCE = 2e-4
TOKENS = np.random.default_rng(3).integers(0, VOCAB, (2, 80)).astype(np.int32)

_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

# Case of tests.tiny, module of mlx-lm, what it calls those hyper-parameters, and what has to be changed in the case.
CASES = {
    "llama": ("llama", {"tie_word_embeddings": True}, {}),
    "llama-untied": ("llama", {"tie_word_embeddings": False}, {}),
    "llama-linear": ("llama", {"tie_word_embeddings": True, "rope_scaling": {"type": "linear", "factor": 4.0}}, {}),
    "llama-yarn": ("llama", {"tie_word_embeddings": True, "rope_scaling": _YARN}, {}),
    "qwen2": ("qwen2", {"tie_word_embeddings": False}, {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}, {}),
    "qwen3-yarn": ("qwen3", {"tie_word_embeddings": True, "rope_scaling": _YARN}, {}),
    # It has no window in gemma2.
    "gemma2": (
        "gemma2",
        {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0, "query_pre_attn_scalar": 24},
        {"window": CONTEXT},
    ),
    # It rounds the scale of gemma3's embeddings to bf16: exact for the root of 144.
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "rope_theta": 1e6,
            "rope_scaling": {"type": "linear", "factor": 8.0},
        },
        {"hidden": 144},
    ),
    "phi3": ("phi3", {}, {}),
    "phi3-long": (
        "phi3",
        {
            "rope_scaling": {
                "type": "longrope",
                "long_factor": factor_table("rope_factors_long.weight", 8).tolist(),
                "short_factor": 1.0,
            },
            "max_position_embeddings": 1024,
            "original_max_position_embeddings": 128,
        },
        {},
    ),
}


def _original_order(w: mx.array, heads: int) -> mx.array:
    """llama's GGUFs hold the two halves of each head's rows in turns."""
    rows = w.shape[0]
    return w.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def _their_weights(weights: Weights) -> dict[str, mx.array]:
    config, result = weights.config, {}
    for name in weights.gguf.tensors:
        match = re.match(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)$", name)
        layer, part, kind = match.groups()
        if part.startswith("rope_"):
            continue
        w = weights.dense(name)
        if config.architecture == "llama" and part in ("attn_q", "attn_k"):
            w = _original_order(w, config.heads if part == "attn_q" else config.kv_heads)
        if config.architecture.startswith("gemma") and "norm" in part:
            w = w - 1
        theirs = _OUTER[part] if layer is None else f"model.layers.{layer}.{_NAMES[part]}"
        if config.architecture == "phi3" and part == "ffn_up":
            theirs = theirs.replace("up_proj", "gate_up_proj")
        if config.post_norms and part == "ffn_norm":
            theirs = theirs.replace("post_attention", "pre_feedforward")
        result[f"{theirs}.{kind}"] = w
    return result


def _their_logits(weights: Weights, module: str, given: dict) -> np.ndarray:
    c = weights.config
    found = importlib.import_module(f"mlx_lm.models.{module}")
    args = {
        "model_type": module,
        "hidden_size": c.hidden,
        "num_hidden_layers": c.layers,
        "intermediate_size": c.ffn,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.norm_eps,
        "vocab_size": c.vocab,
        "max_position_embeddings": c.context,
        "rope_theta": 10000.0,
    }
    model = found.Model(found.ModelArgs.from_dict(args | given))
    theirs = _their_weights(weights)
    theirs = model.sanitize(theirs) if hasattr(model, "sanitize") else theirs
    model.load_weights(list(theirs.items()), strict=True)
    return np.array(model(mx.array(TOKENS)))


def _our_logits(weights: Weights) -> np.ndarray:
    positions = np.broadcast_to(np.arange(TOKENS.shape[1], dtype=np.int32), TOKENS.shape)
    batch = Batch(ids=TOKENS, positions=positions, labels=TOKENS)
    return np.array(StreamedDecoder(weights).logits(batch, {}))


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_mlx_lms(case, tiny):
    module, given, changes = CASES[case]
    gguf = GGUF(tiny(case, **changes))
    weights = Weights(gguf, decoder_config(gguf, seq_len=CONTEXT))
    deviation = np.abs(_our_logits(weights) - _their_logits(weights, module, given))
    print(f"{case}: max {deviation.max():.1e} mean {deviation.mean():.1e}")
    assert deviation.max() < TOLERANCE


def test_gemma3s_embedding_scale_is_not_rounded(tiny):
    """mlx-lm rounds sqrt(96) to bf16; llama.cpp and this do not. With that one number rounded, all else is equal."""
    gguf = GGUF(tiny("gemma3"))
    exact = decoder_config(gguf)
    assert exact.embedding_scale == math.sqrt(96)
    rounded = replace(exact, embedding_scale=mx.array(math.sqrt(96), mx.bfloat16).item())
    theirs = _their_logits(Weights(gguf, exact), *CASES["gemma3"][:2])
    assert np.abs(_our_logits(Weights(gguf, rounded)) - theirs).max() < TOLERANCE
    assert np.abs(_our_logits(Weights(gguf, exact)) - theirs).max() > 10 * TOLERANCE
