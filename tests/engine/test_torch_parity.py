"""Loss, gradients and AdamW updates against PyTorch: the same models in plain torch, differentiated by its autograd.

Tolerances are relative in the Euclidean norm of each tensor: |ours - theirs| / |theirs|. fp32 on both sides.
"""

import math
from dataclasses import dataclass, field

import gguf
import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mlxtrain.config import LoraConfig
from mlxtrain.engine.adamw import adamw, hyper_row
from mlxtrain.engine.batch import Batch, pad_batch
from mlxtrain.engine.labels import UNLABELLED
from mlxtrain.engine.streamed import HEAD_ROWS, StreamedDecoder
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.config import decoder_config
from mlxtrain.models.lora import TARGETS, projections
from mlxtrain.models.weights import Weights
from mlxtrain.recipes.lora import LoRA
from tests.tiny import FFN, HEADS, HIDDEN, KV_HEADS, NORM_EPS, VOCAB, WINDOW, random_adapter

torch.set_num_threads(1)  # its workers spin

RELATIVE = 1e-4
SCALE = 0.7


# ---- the models in torch --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A case of tests.tiny, told in the terms of its paper. `windows` and `bases` repeat over the layers."""

    layers: int = 3
    head_dim: int = HIDDEN // HEADS
    eps: float = NORM_EPS
    neighbours: bool = False  # rotate dimensions 2i and 2i+1, not i and i + d/2
    gelu: bool = False
    embedding_scale: float = 1.0
    softcaps: tuple[float, float] | None = None
    windows: tuple[int | None, ...] = (None,)
    rotations: tuple[tuple[float, float], ...] = ((1e4, 1.0),)  # base and divisor of the positions
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


_LOCAL, _GLOBAL = (1e4, 1.0), (1e6, 8.0)
_GEMMA = {"head_dim": 24, "gelu": True, "embedding_scale": math.sqrt(HIDDEN)}
REFERENCES = {
    "llama": Reference(neighbours=True),
    "llama-biases": Reference(neighbours=True),
    "qwen2-head-bias": Reference(),
    "qwen3": Reference(head_dim=24),
    "gemma": Reference(**_GEMMA),
    "gemma2": Reference(layers=4, softcaps=(3.0, 6.0), windows=(WINDOW, None), **_GEMMA),
    "gemma3": Reference(
        layers=7,
        windows=(WINDOW,) * 5 + (None,),
        rotations=(_LOCAL,) * 5 + (_GLOBAL,),
        **_GEMMA,
    ),
    "phi3": Reference(),
    "phi3-biases": Reference(),
}


def _norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def _rotate(r: Reference, x: torch.Tensor, positions: torch.Tensor, layer: int) -> torch.Tensor:
    """x is (batch, heads, tokens, head_dim); as complex numbers times exp(i angle)."""
    base, divisor = r.rotations[layer % len(r.rotations)]
    half = r.head_dim // 2
    angle = positions[:, None, :, None] / divisor * base ** (-torch.arange(half) / half)
    a, b = (x[..., ::2], x[..., 1::2]) if r.neighbours else (x[..., :half], x[..., half:])
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)
    if r.neighbours:
        return torch.view_as_real(turned).flatten(-2)
    return torch.cat([turned.real, turned.imag], -1)


def _block(r: Reference, x: torch.Tensor, positions: torch.Tensor, layer: int, adapters: dict) -> torch.Tensor:
    w = {n.removeprefix(f"blk.{layer}."): t for n, t in r.tensors.items() if n.startswith(f"blk.{layer}.")}
    length = x.shape[1]

    def linear(name: str, h: torch.Tensor) -> torch.Tensor:
        matrix = w[f"{name}.weight"]
        if f"blk.{layer}.{name}.weight" in adapters:
            a, b = adapters[f"blk.{layer}.{name}.weight"]
            matrix = matrix + SCALE * b @ a
        return F.linear(h, matrix, w.get(f"{name}.bias"))

    h = _norm(x, w["attn_norm.weight"], r.eps)
    if "attn_qkv.weight" in w:
        q, k, v = linear("attn_qkv", h).split([HEADS * r.head_dim, KV_HEADS * r.head_dim, KV_HEADS * r.head_dim], -1)
    else:
        q, k, v = linear("attn_q", h), linear("attn_k", h), linear("attn_v", h)
    q, k, v = (y.unflatten(-1, (-1, r.head_dim)).transpose(1, 2) for y in (q, k, v))
    if "attn_q_norm.weight" in w:
        q, k = _norm(q, w["attn_q_norm.weight"], r.eps), _norm(k, w["attn_k_norm.weight"], r.eps)
    q, k = _rotate(r, q, positions, layer), _rotate(r, k, positions, layer)
    k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(r.head_dim)
    if r.softcaps:
        scores = r.softcaps[0] * torch.tanh(scores / r.softcaps[0])
    distance = torch.arange(length)[:, None] - torch.arange(length)[None]
    window = r.windows[layer % len(r.windows)] or length
    scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
    h = linear("attn_output", (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))
    x = x + (_norm(h, w["post_attention_norm.weight"], r.eps) if "post_attention_norm.weight" in w else h)
    h = _norm(x, w["ffn_norm.weight"], r.eps)
    if "ffn_gate.weight" in w:
        gate, up = linear("ffn_gate", h), linear("ffn_up", h)
    else:
        gate, up = linear("ffn_up", h).split(FFN, -1)
    h = linear("ffn_down", (F.gelu(gate, approximate="tanh") if r.gelu else F.silu(gate)) * up)
    return x + (_norm(h, w["post_ffw_norm.weight"], r.eps) if "post_ffw_norm.weight" in w else h)


def _loss(r: Reference, batch: Batch, adapters: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Mean cross-entropy over the labelled tokens."""
    x = r.tensors["token_embd.weight"][torch.tensor(batch.ids)] * r.embedding_scale
    positions = torch.tensor(batch.positions.astype(np.float32))
    for layer in range(r.layers):
        x = _block(r, x, positions, layer, adapters)
    z = F.linear(
        _norm(x, r.tensors["output_norm.weight"], r.eps),
        r.tensors.get("output.weight", r.tensors["token_embd.weight"]),
        r.tensors.get("output.bias"),
    )
    if r.softcaps:
        z = r.softcaps[1] * torch.tanh(z / r.softcaps[1])
    return F.cross_entropy(z.flatten(0, 1), torch.tensor(batch.labels).long().flatten(), ignore_index=UNLABELLED)


# ---- both sides of a case -------------------------------------------------------------------------------------------


def _open(case: str, tiny) -> tuple[Reference, Weights]:
    """The reference reads the file with the gguf package."""
    path, r = tiny(case), REFERENCES[case]
    for tensor in gguf.GGUFReader(path).tensors:
        r.tensors[tensor.name] = torch.tensor(np.array(tensor.data))
    model = GGUF(path)
    return r, Weights(model, decoder_config(model))


def _batch(*lengths: int, seed: int = 0) -> Batch:
    """Rows of unequal length, their first third not labelled."""
    draw, rows = np.random.default_rng(seed), []
    for length in lengths:
        text = draw.integers(0, VOCAB, length + 1).astype(np.int32)
        labels = text[1:].copy()
        labels[: length // 3] = UNLABELLED
        rows.append((text[:-1], labels))
    return pad_batch(rows, multiple=32)


def _leaves(params: dict[str, mx.array]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(np.array(p), requires_grad=True) for name, p in params.items()}


def _pairs(leaves: dict[str, torch.Tensor]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    names = {name.rsplit(".lora_", 1)[0] for name in leaves}
    return {name: (leaves[f"{name}.lora_a"], leaves[f"{name}.lora_b"]) for name in names}


def _relative(ours: mx.array, theirs: torch.Tensor) -> float:
    theirs = theirs.detach().numpy()
    return float(np.linalg.norm(np.array(ours) - theirs) / np.linalg.norm(theirs))


@pytest.mark.parametrize("case", REFERENCES)
def test_loss_and_every_gradient_equal_torchs(case, tiny):
    reference, weights = _open(case, tiny)
    adapted = projections(weights.config, weights.specs, tuple(TARGETS), range(weights.config.layers))
    params, batch = random_adapter(adapted), _batch(100, 128, 61, 128)
    assert batch.tokens > HEAD_ROWS  # more than one chunk of the output head
    loss, grads = StreamedDecoder(weights, adapted, scale=SCALE).loss_and_grads(batch, params)
    leaves = _leaves(params)
    theirs = _loss(reference, batch, _pairs(leaves))
    theirs.backward()
    worst = max(_relative(grads[name], leaf.grad) for name, leaf in leaves.items())
    print(f"{case}: loss {abs(loss.item() / theirs.item() - 1):.1e}, worst of {len(leaves)} gradients {worst:.1e}")
    assert grads.keys() == leaves.keys()
    assert loss.item() == pytest.approx(theirs.item(), rel=RELATIVE)
    assert worst < RELATIVE


def test_layers_without_an_adapter_pass_the_gradient_on(tiny):
    reference, weights = _open("gemma3", tiny)
    adapted = projections(weights.config, weights.specs, ("k", "down"), (1, 4))
    params, batch = random_adapter(adapted), _batch(40, 64)
    _, grads = StreamedDecoder(weights, adapted, scale=SCALE).loss_and_grads(batch, params)
    leaves = _leaves(params)
    _loss(reference, batch, _pairs(leaves)).backward()
    assert len(grads) == 8
    assert max(_relative(grads[name], leaf.grad) for name, leaf in leaves.items()) < RELATIVE


# ---- updates --------------------------------------------------------------------------------------------------------

RATES = [1e-3, 3e-3, 2e-3, 1e-3, 5e-4]  # a schedule of its own, so that the rate is seen to enter as data
BETAS, EPS = (0.9, 0.99), 1e-8
# With the usual epsilon an element whose gradient is all rounding (1e-8, where 1e-2 is typical) moves as far as any
# other, by its sign. A hundredth of the typical gradient makes whole steps comparable; the usual epsilon is compared on
# equal gradients.
STEADY_EPS = 1e-4


def _recipe(case: str, tiny, targets: str) -> LoRA:
    recipe = LoRA(LoraConfig(targets=targets, rank=4, alpha=4 * SCALE, dtype="f32"))
    recipe.realize(GGUF(tiny(case)))
    recipe.build()
    return recipe


def _row(step: int, decay: float, eps: float) -> mx.array:
    return hyper_row(RATES[step - 1], step, beta1=BETAS[0], beta2=BETAS[1], eps=eps, weight_decay=decay)


def _torch_step(optimizer: torch.optim.Optimizer, loss: torch.Tensor, step: int) -> None:
    optimizer.param_groups[0]["lr"] = RATES[step - 1]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("case", "decay"), [("llama", 0.0), ("llama", 0.1), ("qwen3", 0.1), ("gemma2", 0.1), ("phi3", 0.1)]
)
def test_first_five_updates_equal_torchs(case, decay, tiny):
    reference, _ = _open(case, tiny)
    recipe = _recipe(case, tiny, "all")
    recipe.state.params = random_adapter(recipe.projections)
    leaves = _leaves(recipe.state.params)
    start = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    optimizer = torch.optim.AdamW(leaves.values(), lr=1.0, betas=BETAS, eps=STEADY_EPS, weight_decay=decay)
    for step in range(1, 6):
        batch = _batch(40, 64, seed=step)
        theirs = _loss(reference, batch, _pairs(leaves))
        ours = recipe.step(batch, _row(step, decay, STEADY_EPS), is_first=step == 1)
        _torch_step(optimizer, theirs, step)
        assert ours.loss == pytest.approx(theirs.item(), rel=RELATIVE)
        assert max(_relative(recipe.state.params[name], leaf) for name, leaf in leaves.items()) < RELATIVE
        # What was added since the start is a few percent of the weights.
        moved = max(
            _relative(recipe.state.params[name] - mx.array(start[name].numpy()), leaf - start[name])
            for name, leaf in leaves.items()
        )
        assert moved < 1e-3
    print(f"{case}, decay {decay}: worst deviation of what five updates added {moved:.1e}")


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adamw_equals_torchs_on_equal_gradients(decay):
    """Element by element, gradients from 1e-12 to 1 and exact zeros."""
    draw = np.random.default_rng(0)
    start = draw.standard_normal(4096).astype(np.float32)
    leaf = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.AdamW([leaf], lr=1.0, betas=BETAS, eps=EPS, weight_decay=decay)
    p = {"w": mx.array(start)}
    m, v = {"w": mx.zeros(4096)}, {"w": mx.zeros(4096)}
    for step in range(1, 6):
        g = (draw.standard_normal(4096) * 10.0 ** draw.uniform(-12, 0, 4096)).astype(np.float32)
        g[:64] = 0
        p, m, v = adamw(p, {"w": mx.array(g)}, m, v, _row(step, decay, EPS), mx.array(float(step == 1)))
        _torch_step(optimizer, (leaf * torch.tensor(g)).sum(), step)
        np.testing.assert_allclose(np.array(p["w"]), leaf.detach().numpy(), rtol=0, atol=1e-6)


def test_rows_of_a_fused_tensor_that_do_not_train_stay_zero(tiny):
    """Target q of phi3's fused q, k and v: torch trains a B of the q rows alone."""
    reference, _ = _open("phi3", tiny)
    recipe = _recipe("phi3", tiny, "q")
    rows = HEADS * reference.head_dim
    state = recipe.state
    assert {p.name for p in recipe.projections} == {"attn_qkv"}
    for name, value in random_adapter(recipe.projections).items():
        inside = mx.arange(value.shape[0])[:, None] < rows
        state.params[name] = value if name.endswith("lora_a") else mx.where(inside, value, 0.0)
    leaves = _leaves({n: p if n.endswith("lora_a") else p[:rows] for n, p in state.params.items()})
    optimizer = torch.optim.AdamW(leaves.values(), lr=1.0, betas=BETAS, eps=STEADY_EPS, weight_decay=0.1)
    for step in range(1, 6):
        batch = _batch(40, 64, seed=step)
        pairs = {n: (a, F.pad(b, (0, 0, 0, 2 * KV_HEADS * reference.head_dim))) for n, (a, b) in _pairs(leaves).items()}
        theirs = _loss(reference, batch, pairs)
        ours = recipe.step(batch, _row(step, 0.1, STEADY_EPS), is_first=step == 1)
        assert ours.loss == pytest.approx(theirs.item(), rel=RELATIVE)
        _torch_step(optimizer, theirs, step)
    for name, leaf in leaves.items():
        trained = state.params[name]
        assert _relative(trained[: len(leaf)], leaf) < RELATIVE
        assert not mx.any(trained[len(leaf) :]).item()
