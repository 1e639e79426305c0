"""Small random GGUFs of every supported architecture, for tests that need a model but not a sensible one.

    path = write_tiny(directory / "m.gguf", **CASES["gemma3"])

Weights are scaled so that the attention, the norms, the soft caps and the rotation all show in the logits. Hidden size 96:
its root is exact in no float format, and heads of 16 or 24 elements differ from hidden / heads where the format allows.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mlxtrain.models.config import ARCHITECTURES

VOCAB, HIDDEN, FFN, HEADS, KV_HEADS, CONTEXT, WINDOW = 320, 96, 160, 6, 2, 256, 16
_GEMMA = ("gemma", "gemma2", "gemma3")
_LAYERS = {"gemma3": 7, "gemma2": 4}  # a whole pattern of sliding and full layers

# Frequencies divided by these (llama 3 and LongRoPE store such tables), within the range of the published ones.
_FACTORS = {
    "rope_freqs.weight": lambda n: np.geomspace(1, 8, n),
    "rope_factors_short.weight": lambda n: np.linspace(1, 1.6, n),
    "rope_factors_long.weight": lambda n: np.geomspace(1, 30, n),
}
_LONGROPE = {"scaling.type": "longrope", "scaling.attn_factor": 1.19}
_YARN = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 64}

# Every architecture, and every way its positions may be scaled: keyword arguments of `write_tiny`.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama-untied": {"architecture": "llama", "tied": False},
    "llama-biases": {"architecture": "llama", "biases": True},
    "llama-linear": {"architecture": "llama", "rope": {"scaling.type": "linear", "scaling.factor": 4.0}},
    "llama-yarn": {"architecture": "llama", "rope": _YARN},
    "llama-freqs": {"architecture": "llama", "factors": ("rope_freqs.weight",)},
    "qwen2": {"architecture": "qwen2", "biases": True, "tied": False},
    "qwen3": {"architecture": "qwen3"},
    "qwen3-yarn": {"architecture": "qwen3", "rope": _YARN},
    "gemma": {"architecture": "gemma"},
    "gemma2": {"architecture": "gemma2"},
    "gemma3": {
        "architecture": "gemma3",
        "rope": {"freq_base": 1e6, "scaling.type": "linear", "scaling.factor": 8.0},
    },
    "phi3": {"architecture": "phi3", "tied": False},
    "phi3-short": {
        "architecture": "phi3",
        "tied": False,
        "context": 1024,
        "rope": _LONGROPE | {"scaling.original_context_length": 512},
        "factors": ("rope_factors_short.weight", "rope_factors_long.weight"),
    },
    "phi3-long": {
        "architecture": "phi3",
        "tied": False,
        "context": 1024,
        "rope": _LONGROPE | {"scaling.original_context_length": 128},
        "factors": ("rope_factors_short.weight", "rope_factors_long.weight"),
    },
}


def write_tiny(
    path: str | Path,
    *,
    architecture: str,
    block: str = "F32",
    tied: bool = True,
    biases: bool = False,
    rope: Mapping[str, Any] | None = None,
    factors: tuple[str, ...] = (),
    context: int = CONTEXT,
    hidden: int = HIDDEN,
    ffn: int = FFN,
    layers: int | None = None,
    window: int = WINDOW,
    seed: int = 0,
) -> Path:
    """Write a model; the same arguments give the same bytes. `block` is the type of every matrix (one that `gguf.quants`
    can quantise), `rope` are keys below `<architecture>.rope.`, `factors` the tables of frequency factors to add."""
    assert architecture in ARCHITECTURES
    layers = layers or _LAYERS.get(architecture, 3)
    head_dim = 24 if architecture in ("qwen3", *_GEMMA) else hidden // HEADS
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_string("general.name", "tiny")  # llama.cpp expects certain tokens of a model that is called phi3
    keys = _keys(architecture, context, hidden, ffn, layers, head_dim, window)
    for key, value in (keys | {f"rope.{key}": value for key, value in (rope or {}).items()}).items():
        name = f"{architecture}.{key}"
        {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](name, value)
    _add_vocabulary(writer)
    draw = np.random.default_rng([seed, len(architecture), layers])
    kind = gguf.GGMLQuantizationType[block]
    for name, array in _tensors(draw, architecture, hidden, ffn, layers, head_dim, tied, biases).items():
        if array.ndim == 2 and block != "F32":
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    for name in factors:
        writer.add_tensor(name, _FACTORS[name](head_dim // 2).astype(np.float32))
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
        "attention.layer_norm_rms_epsilon": 1e-5 if architecture == "llama" else 1e-6,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": 10000.0,
    }
    if architecture in ("gemma2", "gemma3", "phi3"):
        keys["attention.sliding_window"] = window
    if architecture == "gemma2":  # low enough to bend what they cap
        keys |= {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0}
    return keys


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Byte-level BPE: the 128 bytes of ASCII, pairs of letters, and a control token that begins and ends texts. Every token
    is whole characters: llama.cpp reports no probabilities where a piece ends within one."""
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
            parts["attn_q_norm.weight"], parts["attn_k_norm.weight"] = 1.5 * norm(head_dim), 1.5 * norm(head_dim)
        if ARCHITECTURES[architecture].post_norms:
            parts["post_attention_norm.weight"], parts["post_ffw_norm.weight"] = norm(hidden), norm(hidden)
        if biases:
            names = ["attn_q", "attn_k", "attn_v"]
            names += ["attn_output", "ffn_gate", "ffn_up", "ffn_down"] if architecture == "llama" else []
            for name in names:
                rows = len(parts[f"{name}.weight"])
                parts[f"{name}.bias"] = (0.3 * draw.standard_normal(rows)).astype(np.float32)
        tensors |= {f"blk.{layer}.{name}": array.astype(np.float32) for name, array in parts.items()}
    return tensors


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
