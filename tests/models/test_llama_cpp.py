"""Log-probabilities against llama.cpp on the same weights, for every architecture and every RoPE scaling."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxtrain.engine.batch import Batch
from mlxtrain.engine.generate import Generator, Sampling
from mlxtrain.engine.streamed import Params, StreamedDecoder
from mlxtrain.export.gguf_adapter import write_adapter
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models import decoder as decoder_module
from mlxtrain.models.config import ARCHITECTURES, decoder_config
from mlxtrain.models.lora import TARGETS, Projection, projections
from mlxtrain.models.weights import Weights
from tests.llama_cpp import Continuation, start_exact, write_as_f32
from tests.tiny import CASES, CONTEXT, VOCAB, WINDOW, random_adapter

COUNT, TOP, SCALE = 200, 10, 0.7
PROMPT = np.random.default_rng(0).integers(0, VOCAB - 1, 40).tolist()
assert len(PROMPT) > 2 * WINDOW  # so that no position compared sees the whole text through a window

# fp32 on both sides, in another order of summation: 200 positions come to 1e-5 to 2e-4, ten times below this.
TOLERANCE = 1e-3
# llama.cpp's GELU on the CPU is a table of fp16 for fp16 arguments.
GELU_TOLERANCE, GELU_MEAN = 2e-2, 5e-4


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A model and an adapter of every projection, opened here and continued by llama.cpp without and with it."""

    weights: Weights
    adapted: list[Projection]
    params: Params
    plain: Continuation
    with_adapter: Continuation

    def sides(self) -> list[tuple[Continuation, list[Projection], Params]]:
        return [(self.plain, [], {}), (self.with_adapter, self.adapted, self.params)]


def _compare(path: Path, adapter: Path, n_ctx: int, prompt: list[int] | str) -> tuple[Compared, list[int]]:
    gguf = GGUF(path)
    weights = Weights(gguf, decoder_config(gguf, seq_len=n_ctx))
    adapted = projections(weights.config, weights.specs, tuple(TARGETS), range(weights.config.layers))
    params = random_adapter(adapted)
    write_adapter(adapter, params, scale=SCALE, base=gguf, provenance={})
    with start_exact(path, adapter, n_ctx) as server:
        ids = server.tokenize(prompt) if isinstance(prompt, str) else prompt
        plain, changed = (server.continuation(ids, count=COUNT, top=TOP, adapter_scale=scale) for scale in (0.0, 1.0))
    compared = Compared(weights=weights, adapted=adapted, params=params, plain=plain, with_adapter=changed)
    return compared, ids


@pytest.fixture(scope="module")
def compared(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Compared]:
    directory, done = tmp_path_factory.mktemp("adapters"), {}

    def get(case: str) -> Compared:
        if case not in done:
            done[case] = _compare(tiny(case), directory / f"{case}.gguf", CONTEXT, PROMPT)[0]
        return done[case]

    return get


def _log_probabilities(
    weights: Weights, adapted: list[Projection], params: Params, prompt: list[int], tokens: np.ndarray
) -> np.ndarray:
    """Ours of every token after each position from the prompt's last on: (N, vocab), float64."""
    ids = np.array([*prompt, *tokens[:-1]], np.int32)[None]
    batch = Batch(ids=ids, positions=np.arange(ids.shape[1], dtype=np.int32)[None], labels=ids)
    z = np.array(StreamedDecoder(weights, adapted, scale=SCALE).logits(batch, params))[0, len(prompt) - 1 :]
    z = z.astype(np.float64) - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def _deviation(theirs: Continuation, ours: np.ndarray) -> np.ndarray:
    return np.abs(np.take_along_axis(ours, theirs.ids, axis=1) - theirs.logprobs)


def _summary(adapted: list[Projection], deviation: np.ndarray) -> str:
    chosen = deviation[:, 0]
    return (
        f"{'adapter' if adapted else 'plain'}: chosen tokens max {chosen.max():.1e} mean {chosen.mean():.1e}, "
        f"{TOP} likeliest max {deviation.max():.1e} mean {deviation.mean():.1e}"
    )


def _is_gelu(case: str) -> bool:
    return ARCHITECTURES[CASES[case]["architecture"]].activation == "gelu"


def _half_gelu(x: mx.array) -> mx.array:
    """GELU as llama.cpp's table holds it."""
    x = x.astype(mx.float16).astype(mx.float32)
    return (0.5 * x * (1 + mx.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))).astype(mx.float16).astype(mx.float32)


def test_every_architecture_is_compared():
    assert {case["architecture"] for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("case", CASES)
def test_log_probabilities_equal_llama_cpps(case, compared):
    model = compared(case)
    for theirs, adapted, params in model.sides():
        deviation = _deviation(theirs, _log_probabilities(model.weights, adapted, params, PROMPT, theirs.tokens))
        print(_summary(adapted, deviation))
        assert deviation.max() < (GELU_TOLERANCE if _is_gelu(case) else TOLERANCE)
        # The mean over the tokens that were chosen; over the ten likeliest it is up to twice that.
        assert deviation[:, 0].mean() < GELU_MEAN


@pytest.mark.parametrize("case", [case for case in CASES if _is_gelu(case)])
def test_gelus_table_is_what_differs_in_gemma(case, compared, monkeypatch):
    """With the same table here nothing is left but arguments that fall to either side of a rounding."""
    model = compared(case)
    for theirs, adapted, params in model.sides():
        exact = _deviation(theirs, _log_probabilities(model.weights, adapted, params, PROMPT, theirs.tokens))
        with monkeypatch.context() as patch:
            patch.setattr(decoder_module, "_gelu", _half_gelu)
            table = _deviation(theirs, _log_probabilities(model.weights, adapted, params, PROMPT, theirs.tokens))
        print(_summary(adapted, table))
        assert table.mean() < 2e-4
        assert table.mean() < exact.mean() / 3


@pytest.mark.parametrize(("case", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_query_scale_of_the_largest_gemmas(case, layers, tiny, tmp_path):
    """Those of 27 billion weights, known by their depth, scale queries by hidden / heads and not by the head's size."""
    model, _ = _compare(tiny(case, layers=layers), tmp_path / "adapter.gguf", CONTEXT, PROMPT)
    theirs, config = model.plain, model.weights.config
    right = _deviation(theirs, _log_probabilities(model.weights, [], {}, PROMPT, theirs.tokens)).mean()
    other = Weights(model.weights.gguf, replace(config, attention_scale=config.head_dim**-0.5))
    wrong = _deviation(theirs, _log_probabilities(other, [], {}, PROMPT, theirs.tokens)).mean()
    print(f"mean deviation {right:.1e}, with the other scale {wrong:.1e}")
    assert right < 5e-3  # GELU's table, over that many layers
    assert wrong > 10 * right


@pytest.mark.parametrize("case", ARCHITECTURES)
def test_the_comparison_would_show_a_lost_adapter(case, compared):
    model = compared(case)
    without = _log_probabilities(model.weights, [], {}, PROMPT, model.with_adapter.tokens)
    assert _deviation(model.with_adapter, without).mean() > 0.1


@pytest.mark.parametrize(
    "case",
    ["llama-biases", "llama-yarn", "qwen2-head-bias", "qwen3", "gemma", "gemma2-pattern", "gemma3", "phi3-partial"],
)
def test_generator_continues_as_llama_cpp_does(case, compared):
    """Token by token through the key/value cache."""
    model = compared(case)
    theirs, adapted, params = model.sides()[1]
    generator = Generator(model.weights, adapted, params, scale=SCALE)
    ours = np.array(list(islice(generator.tokens(PROMPT, Sampling()), 48)))
    differs = np.flatnonzero(ours != theirs.tokens[:48])
    if len(differs):  # only where two tokens are as likely as each other to within the tolerance
        first = differs[0]
        p = _log_probabilities(model.weights, adapted, params, PROMPT, theirs.tokens[: first + 1])[-1]
        assert abs(p[ours[first]] - p[theirs.tokens[first]]) < (GELU_TOLERANCE if _is_gelu(case) else TOLERANCE)


@pytest.mark.parametrize("case", ["llama-yarn", "qwen2", "gemma2", "gemma3", "phi3-long"])
def test_generator_equals_one_pass_over_a_long_prompt(case, tiny):
    """A prompt longer than what is run at once, and a cache that grows on the way."""
    gguf = GGUF(tiny(case))
    weights = Weights(gguf, decoder_config(gguf))
    prompt = np.random.default_rng(1).integers(0, VOCAB - 1, 760).tolist()
    tokens = np.array(list(islice(Generator(weights).tokens(prompt, Sampling()), 12)))
    ours = _log_probabilities(weights, [], {}, prompt, tokens)
    assert (ours.max(axis=-1) - ours[np.arange(12), tokens] < TOLERANCE).all()


# ---- a real model ---------------------------------------------------------------------------------------------------

CHAT = "<|im_start|>user\nWhy is the sky blue, and why are sunsets red?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.real
def test_smollm2_log_probabilities_equal_llama_cpps_on_f32_weights(smollm2_gguf, tmp_path):
    path = write_as_f32(GGUF(smollm2_gguf), tmp_path / "f32.gguf")
    model, prompt = _compare(path, tmp_path / "adapter.gguf", 512, CHAT)
    path.unlink()  # half a gigabyte; what is mapped stays readable
    for theirs, adapted, params in model.sides():
        ours = _log_probabilities(model.weights, adapted, params, prompt, theirs.tokens)
        deviation = _deviation(theirs, ours)
        print(_summary(adapted, deviation))
        assert deviation.max() < TOLERANCE
    assert _deviation(model.with_adapter, _log_probabilities(model.weights, [], {}, prompt, theirs.tokens)).mean() > 0.1


@pytest.mark.real
def test_llama_cpp_loads_the_adapter_on_the_original_file(smollm2_gguf, tmp_path):
    """There llama.cpp rounds activations to 8 bits, with the adapter as without, so that it agrees more coarsely."""
    model, prompt = _compare(smollm2_gguf, tmp_path / "adapter.gguf", 512, CHAT)
    rounding, with_adapter = (
        _deviation(theirs, _log_probabilities(model.weights, adapted, params, prompt, theirs.tokens)).mean()
        for theirs, adapted, params in model.sides()
    )
    theirs = model.with_adapter
    lost = _deviation(theirs, _log_probabilities(model.weights, [], {}, prompt, theirs.tokens)).mean()
    print(f"mean deviation: {rounding:.3f} plain, {with_adapter:.3f} with the adapter, {lost:.3f} had it been lost")
    assert with_adapter < 2 * rounding
    assert with_adapter < lost / 3
