"""Tokens per second of `mlxtrain generate` beside mlx-lm's on the same weights, in one process, taken in turns.

    python tools/bench_generate.py model.gguf [--tokens 64] [--repeats 5]

The model is of the llama architecture; mlx-lm's class gets the weights decoded by mlxtrain. Prints one JSON object;
`ratio` is the median of mlxtrain's rate over mlx-lm's in each turn.
"""

# ruff: noqa: I001  mlxtrain comes before mlx: it puts the fast BLAS in place
import argparse
import json
import statistics
from itertools import islice
from time import perf_counter

import mlxtrain  # noqa: F401
import mlx.core as mx
from mlx.utils import tree_unflatten
from mlx_lm.generate import generate_step
from mlx_lm.models import llama

from mlxtrain.base import Base
from mlxtrain.engine.generate import Generator, Sampling
from mlxtrain.models.config import DecoderConfig, decoder_config
from mlxtrain.models.weights import Weights
from mlxtrain.recipes.lora import compute_dtype
from mlxtrain.recipes.reply import prompt_ids

_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def reference(weights: Weights, config: DecoderConfig, dtype: mx.Dtype) -> llama.Model:
    """mlx-lm's llama with the file's weights. q and k rows stay as stored, so its RoPE pairs neighbours."""
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=config.hidden,
            num_hidden_layers=config.layers,
            intermediate_size=config.ffn,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.norm_eps,
            vocab_size=config.vocab,
            rope_theta=config.ropes[0].base,
            rope_traditional=True,
            tie_word_embeddings=config.tied,
        )
    )
    named = []
    for name in weights.gguf.tensors:
        stem, _, kind = name.rpartition(".")
        parts = stem.split(".")
        path = f"model.layers.{parts[1]}.{_NAMES[parts[2]]}" if parts[0] == "blk" else _GLOBAL[stem]
        named.append((f"{path}.{kind}", weights.dense(name, dtype)))
    model.update(tree_unflatten(named))
    mx.eval(model.parameters())
    return model


def rate(tokens, count: int) -> tuple[float, list[int]]:
    """Tokens per second after the first, and the tokens."""
    first, start, found = next(tokens), perf_counter(), []
    found = [first, *islice(tokens, count - 1)]
    return (count - 1) / (perf_counter() - start), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="auto", choices=("auto", "f32", "f16", "bf16"))
    args = parser.parse_args()
    base, dtype = Base(args.gguf), compute_dtype(args.dtype)
    config = decoder_config(base.gguf)
    weights = Weights(base.gguf, config)
    generator, model = Generator(weights, dtype=dtype), reference(weights, config, dtype)
    ids = prompt_ids(base, "Tell me about the sea.")
    ours, theirs, same = [], [], True
    for _ in range(args.repeats):
        mine, mine_ids = rate(generator.tokens(ids, Sampling()), args.tokens)
        steps = generate_step(mx.array(ids), model, max_tokens=args.tokens + 1)
        other, other_ids = rate((int(token) for token, _ in steps), args.tokens)
        ours.append(mine)
        theirs.append(other)
        same &= mine_ids == other_ids
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(
        json.dumps(
            {
                "mlxtrain": round(statistics.median(ours), 2),
                "mlx_lm": round(statistics.median(theirs), 2),
                "ratio": round(ratio, 3),
                "same_tokens": same,
                "dtype": str(dtype),
            }
        )
    )


if __name__ == "__main__":
    main()
