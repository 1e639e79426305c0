"""LoRA on a frozen GGUF: which weights exist, where they come from, which of them train.

recipe = LoRA(options)
recipe.realize(gguf)                      # map the base, draw the adapters
recipe.build()                            # bake the step
loss = recipe.step(batch, hp, is_first)   # forward + cross-entropy + backward + AdamW
"""

import math
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from mlxtrain.config import LoraConfig
from mlxtrain.engine.adamw import baked_adamw, global_norm
from mlxtrain.engine.bake import bake
from mlxtrain.engine.batch import Batch
from mlxtrain.engine.streamed import Params, StreamedDecoder
from mlxtrain.errors import RunError, UserError
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.config import decoder_config
from mlxtrain.models.lora import Projection, initial, parse_layers, parse_targets, projections
from mlxtrain.models.weights import Weights
from mlxtrain.train.state import StepResult, TrainState

_DROPOUT_STREAM = 3


def compute_dtype(name: str) -> mx.Dtype:
    """The dtype of activations: bf16 on a GPU and fp32 on the CPU, where half-precision products are 50 times
    slower."""
    if name == "auto":
        name = "bf16" if mx.default_device().type == mx.DeviceType.gpu else "f32"
    return {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}[name]


@dataclass
class LoRA:
    """The recipe. Its life is `realize`, `build`, then `step` as often as wanted; another order is refused."""

    config: LoraConfig
    compiled: bool | None = None
    phase: str = field(default="new", init=False)

    def _expect(self, phase: str, call: str) -> None:
        if self.phase != phase:
            raise RuntimeError(f"LoRA.{call} was called on a recipe that is {self.phase}, expected {phase}")

    @property
    def scale(self) -> float:
        c = self.config
        return c.alpha / (math.sqrt(c.rank) if c.rslora else c.rank)

    def realize(self, gguf: GGUF) -> None:
        """Map the base and draw the adapters. Raises UserError for a model or options that cannot be."""
        self._expect("new", "realize")
        decoder = decoder_config(gguf, self.config.seq_len)
        self.weights = Weights(gguf, decoder)
        chosen = parse_layers(self.config.layers, decoder.layers)
        self.projections: list[Projection] = projections(
            decoder, self.weights.specs, parse_targets(self.config.targets), chosen
        )
        smallest = min(min(p.shape) for p in self.projections)
        if self.config.rank > smallest:
            raise UserError(
                f"--rank {self.config.rank}: expected at most {smallest}, a side of the smallest matrix adapted"
            )
        params: Params = {}
        for projection in self.projections:
            params |= initial(projection, self.config.rank, self.config.seed)
        zeros = {name: mx.zeros_like(p) for name, p in params.items()}
        self.state = TrainState(params=params, m=zeros, v=dict(zeros))
        self.phase = "realized"

    def build(self) -> None:
        """Bake the step."""
        self._expect("realized", "build")
        self.decoder = StreamedDecoder(
            self.weights,
            self.projections,
            scale=self.scale,
            dropout=self.config.dropout,
            dtype=compute_dtype(self.config.dtype),
            compiled=self.compiled,
        )
        self._update = baked_adamw(self.compiled)
        self._norm = bake(global_norm, self.compiled)
        self.phase = "built"

    def step(self, batch: Batch, hp: mx.array, is_first: bool) -> StepResult:
        """One optimizer step. `is_first` resets the moments.

        Raises RunError, with weights and moments as they were, where the loss or the gradient is not finite.
        """
        self._expect("built", "step")
        state = self.state
        loss, grads = self.decoder.loss_and_grads(batch, state.params, self._dropout_keys(state.step + 1))
        result = StepResult(loss=loss.item(), grad_norm=self._norm(grads).item(), tokens=batch.tokens)
        if not math.isfinite(result.loss) or not math.isfinite(result.grad_norm):
            raise RunError(
                f"step {state.step + 1}: loss {result.loss}, gradient norm {result.grad_norm} (rows "
                f"{', '.join(map(str, batch.rows))}); nothing was updated; lower --lr or look at these rows"
            )
        reset = mx.array(float(is_first))
        params, m, v = self._update(state.params, grads, state.m, state.v, hp, reset)
        mx.eval(params, m, v)
        if not math.isfinite(self._norm(params).item()):
            raise RunError(f"step {state.step + 1}: the update is not finite; nothing was updated; lower --lr")
        state.params, state.m, state.v = params, m, v
        state.step += 1
        return result

    def loss_sum(self, batch: Batch, params: Params) -> float:
        """Cross-entropy with these adapters, summed over the labelled tokens of a batch, in nats."""
        self._expect("built", "loss_sum")
        return self.decoder.loss_sum(batch, params)

    def _dropout_keys(self, step: int) -> mx.array | None:
        """One key a layer, from the seed and the step alone, so that a resumed run drops the same elements."""
        if not self.config.dropout:
            return None
        words = np.random.SeedSequence([self.config.seed, _DROPOUT_STREAM, step]).generate_state(2)
        return mx.random.split(mx.array(words), self.weights.config.layers)
