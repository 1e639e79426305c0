"""Small random GGUFs of every supported architecture, for tests that need a model but not a sensible one.

    path = write_tiny(directory / "m.gguf", **CASES["gemma3"])

Weights are scaled so that the attention, the norms, the soft caps and the rotation all show in the logits. The root of
the hidden size, 96, is exact in no float format, and heads have 24 elements, not 96 / 6, where the format allows it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest

from mlxtrain.models.config import ARCHITECTURES
from mlxtrain.models.lora import Projection

VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, CONTEXT, WINDOW = 320, 96, 160, 6, 2, 256, 16
NORM_EPS = 1e-2  # far above the usual 1e-6, so that it shows
_GEMMA = ("gemma", "gemma2", "gemma3")
_LAYERS = {"gemma3": 7, "gemma2": 4}  # a whole pattern of sliding and full layers

# Frequencies divided by these (llama 3 and LongRoPE store such tables), within the range of the published ones.
_FACTORS = {
    "rope_freqs.weight": lambda n: np.geomspace(1, 8, n),
    "rope_factors_short.weight": lambda n: np.linspace(1, 1.6, n),
    "rope_factors_long.weight": lambda n: np.geomspace(1, 30, n),
}
_LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
_LONGROPE = {
    "rope.scaling.type": "longrope",
    "rope.scaling.attn_factor": math.sqrt(1 + math.log(8) / math.log(128)),
    "rope.scaling.original_context_length": 128,
}
_PHI3 = {"architecture": "phi3", "tied": False}
_BOTH = ("rope_factors_short.weight", "rope_factors_long.weight")
_GLOBAL = {"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}

# Every architecture, and every way its positions may be scaled: keyword arguments of `write_tiny`.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama-untied": {"architecture": "llama", "tied": False},
    "llama-biases": {"architecture": "llama", "biases": True},
    "llama-linear": {"architecture": "llama", "keys": _LINEAR},
    "llama-linear-old-key": {"architecture": "llama", "keys": {"rope.scale_linear": 4.0}},
    "llama-not-scaled": {"architecture": "llama", "keys": _LINEAR | {"rope.scaling.type": "none"}},
    "llama-yarn": {"architecture": "llama", "keys": _YARN},
    "llama-yarn-factor": {"architecture": "llama", "keys": _YARN | {"rope.scaling.attn_factor": 0.8}},
    "llama-freqs": {"architecture": "llama", "factors": ("rope_freqs.weight",)},
    "qwen2": {"architecture": "qwen2", "biases": True, "tied": False},
    "qwen2-head-bias": {"architecture": "qwen2", "biases": True, "tied": False, "head_bias": True},
    "qwen3": {"architecture": "qwen3"},
    "qwen3-yarn": {"architecture": "qwen3", "keys": _YARN},
    "gemma": {"architecture": "gemma"},
    "gemma2": {"architecture": "gemma2"},
    "gemma2-pattern": {
        "architecture": "gemma2",
        "keys": {"attention.sliding_window_pattern": [False, True, True, False], "rope.freq_base_swa": 5000.0},
    },
    "gemma3": {"architecture": "gemma3", "keys": _GLOBAL},
    "gemma3-pattern": {
        "architecture": "gemma3",
        "tied": False,
        "keys": _GLOBAL
        | {"attention.sliding_window_pattern": 3, "rope.freq_base_swa": 5000.0, "final_logit_softcapping": 6.0},
    },
    "gemma3-no-window": {"architecture": "gemma3", "window": 0, "keys": _GLOBAL},
    "phi3": _PHI3,
    "phi3-biases": _PHI3 | {"biases": True},
    "phi3-short": _PHI3
    | {"context": 1024, "keys": _LONGROPE | {"rope.scaling.original_context_length": 512}, "factors": _BOTH},
    "phi3-long": _PHI3 | {"context": 1024, "keys": _LONGROPE, "factors": _BOTH},
    "phi3-partial": _PHI3 | {"context": 1024, "keys": _LONGROPE | {"rope.dimension_count": 12}, "factors": _BOTH},
}


def factor_table(name: str, count: int) -> np.ndarray:
    """The `count` factors that a model of tests.tiny stores under `name`, float32."""
    return _FACTORS[name](count).astype(np.float32)


def write_tiny(
    path: str | Path,
    *,
    architecture: str,
    block: str = "F32",
    tied: bool = True,
    biases: bool = False,
    head_bias: bool = False,
    keys: Mapping[str, Any] | None = None,
    factors: tuple[str, ...] = (),
    context: int = CONTEXT,
    hidden: int = HIDDEN,
    ffn: int = FFN,
    layers: int | None = None,
    window: int = WINDOW,
    seed: int = 0,
) -> Path:
    """Write a model; the same arguments give the same bytes. `block` is the type of every matrix whose rows it divides
    (one that `gguf.quants` can quantise), `keys` are metadata below `<architecture>.`, `factors` the tables of
    frequency factors to add."""
    assert architecture in ARCHITECTURES
    layers = layers or _LAYERS.get(architecture, 3)
    head_dim = 24 if architecture in ("qwen3", *_GEMMA) else hidden // HEADS
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_string("general.name", "tiny")  # llama.cpp expects certain tokens of a model that is called phi3
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    keys = _keys(architecture, context, hidden, ffn, layers, head_dim, window) | (keys or {})
    for key, value in keys.items():
        add[type(value)](f"{architecture}.{key}", value)
    _add_vocabulary(writer)
    draw = np.random.default_rng([seed, len(architecture), layers])
    kind = gguf.GGMLQuantizationType[block]
    tensors = _tensors(draw, architecture, hidden, ffn, layers, head_dim, tied, biases)
    if head_bias:
        tensors["output.bias"] = draw.standard_normal(VOCAB).astype(np.float32)
        tensors["output.bias"][-1] = -8
    for name, array in tensors.items():
        if array.ndim == 2 and block != "F32" and array.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    for name in factors:
        writer.add_tensor(name, factor_table(name, keys["rope.dimension_count"] // 2))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _keys(architecture, context, hidden, ffn, layers, head_dim, window) -> dict[str, int | float | str]:
    keys: dict[str, int | float | str] = {
        "context_length": context,
        "embedding_length": hidden,
        "block_count": layers,
        "feed_forward_length": ffn,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": NORM_EPS,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": 10000.0,
    }
    if architecture in ("gemma2", "gemma3", "phi3") and window:
        keys["attention.sliding_window"] = window
    if architecture == "gemma2":  # low enough to bend what they cap
        keys |= {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0}
    return keys


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Byte-level BPE: the 128 bytes of ASCII, pairs of letters, and a control token that begins and ends texts. Every
    token is whole characters: llama.cpp reports no probabilities where a piece ends within one."""
    letters = [chr(byte) if 33 <= byte < 127 else chr(256 + byte - (94 if byte == 127 else 0)) for byte in range(128)]
    pairs = [(a, b) for a in "abcdefghijklmnop" for b in "abcdefghijklmnop"][: VOCAB - 129]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*letters, *(a + b for a, b in pairs), "<|end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCAB - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([f"{a} {b}" for a, b in pairs])
    writer.add_bos_token_id(VOCAB - 1)
    writer.add_eos_token_id(VOCAB - 1)
    writer.add_add_bos_token(False)


def _tensors(draw, architecture, hidden, ffn, layers, head_dim, tied, biases) -> dict[str, np.ndarray]:
    q, kv = HEADS * head_dim, KV_HEADS * head_dim

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (scale / np.sqrt(columns) * draw.standard_normal((rows, columns))).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return draw.uniform(0.5, 1.5, size).astype(np.float32)

    # Scores of a deviation near 2, so that each head prefers some positions. Where queries and keys are normalised the
    # weights of those norms see to it instead.
    sharp = 1.0 if architecture in ("qwen3", "gemma3") else 1.5
    # Gemma multiplies embeddings by sqrt(hidden); tied logits should deviate by 2 to 3.
    embedding = matrix(VOCAB, hidden, 2.5 if tied else np.sqrt(hidden))
    if architecture in _GEMMA and not tied:
        embedding /= np.sqrt(hidden)
    # Signs, so that a tied head does not answer each token with itself.
    signs = draw.choice([-1.0, 1.0], hidden)
    tensors = {"token_embd.weight": embedding, "output_norm.weight": (signs * norm(hidden)).astype(np.float32)}
    if not tied:
        tensors["output.weight"] = matrix(VOCAB, hidden, 2.5)
    tensors["token_embd.weight" if tied else "output.weight"][-1] = (
        0  # so that the end of a text is never the likeliest
    )
    for layer in range(layers):
        parts = {"attn_norm.weight": norm(hidden), "ffn_norm.weight": norm(hidden)}
        if architecture == "phi3":
            fused = [matrix(q, hidden, sharp), matrix(kv, hidden, sharp), matrix(kv, hidden)]
            parts["attn_qkv.weight"] = np.concatenate(fused)
            parts["ffn_up.weight"] = matrix(2 * ffn, hidden)
        else:
            parts["attn_q.weight"], parts["attn_k.weight"] = matrix(q, hidden, sharp), matrix(kv, hidden, sharp)
            parts["attn_v.weight"] = matrix(kv, hidden)
            parts["ffn_gate.weight"], parts["ffn_up.weight"] = matrix(ffn, hidden), matrix(ffn, hidden)
        parts["attn_output.weight"], parts["ffn_down.weight"] = matrix(hidden, q), matrix(hidden, ffn)
        if ARCHITECTURES[architecture].qk_norm:
            parts["attn_q_norm.weight"], parts["attn_k_norm.weight"] = 1.25 * norm(head_dim), 1.25 * norm(head_dim)
        if ARCHITECTURES[architecture].post_norms:
            parts["post_attention_norm.weight"], parts["post_ffw_norm.weight"] = norm(hidden), 0.6 * norm(hidden)
        if biases:
            names = ["attn_qkv"] if architecture == "phi3" else ["attn_q", "attn_k", "attn_v"]
            names += ["attn_output", "ffn_gate", "ffn_up", "ffn_down"] if architecture == "llama" else []
            for name in names:
                rows = len(parts[f"{name}.weight"])
                parts[f"{name}.bias"] = (0.3 * draw.standard_normal(rows)).astype(np.float32)
        tensors |= {f"blk.{layer}.{name}": array.astype(np.float32) for name, array in parts.items()}
    return tensors


def random_adapter(projections: Sequence[Projection], rank: int = 4, seed: int = 0) -> dict[str, mx.array]:
    """A and B both random, so that the adapter's contribution is a fifth of what it is added to."""
    draw, params = np.random.default_rng(seed), {}
    for p in projections:
        out, inner = p.shape
        a = draw.standard_normal((rank, inner)) / np.sqrt(inner)
        b = draw.standard_normal((out, rank)) * 0.2 / np.sqrt(rank)
        params[f"{p.tensor}.lora_a"] = mx.array(a.astype(np.float32))
        params[f"{p.tensor}.lora_b"] = mx.array(b.astype(np.float32))
    return params


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny("gemma3")` is the path of that case, written once a session; keywords change its arguments."""
    directory, written = tmp_path_factory.mktemp("tiny"), {}

    def get(case: str, **changes: Any) -> Path:
        key = (case, repr(sorted(changes.items())))
        if key not in written:
            written[key] = write_tiny(directory / f"{case}-{len(written)}.gguf", **(CASES[case] | changes))
        return written[key]

    return get
