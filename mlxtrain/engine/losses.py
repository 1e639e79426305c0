"""Cross-entropy of the output head, with its gradient in closed form: one exponential per logit, all in fp32."""

import mlx.core as mx

from mlxtrain.engine.labels import UNLABELLED
from mlxtrain.models.config import DecoderConfig
from mlxtrain.models.decoder import logits, rms_norm


def cross_entropy(z: mx.array, labels: mx.array) -> mx.array:
    """Negative log-likelihood of each labelled row in nats, 0 for unlabelled ones: fp32 (N, V) and int (N,) to (N,)."""
    valid = labels != UNLABELLED
    target = mx.take_along_axis(z, mx.where(valid, labels, 0)[:, None], axis=-1)[:, 0]
    return mx.where(valid, mx.logsumexp(z, axis=-1) - target, 0.0)


def head_loss(config: DecoderConfig, h_ND, labels_N, norm, head, bias) -> mx.array:
    """Sum of the cross-entropy over the labelled rows, fp32 scalar."""
    return mx.sum(cross_entropy(logits(config, h_ND, norm, head, bias), labels_N))


def head_loss_and_grad(config: DecoderConfig, h_ND, labels_N, norm, head, bias, weight) -> tuple[mx.array, mx.array]:
    """`weight` times the summed cross-entropy, and its gradient with respect to `h_ND`.

    softmax(z) - onehot is formed from the exponentials that the loss needs anyway; the soft cap's and the norm's
    derivatives follow by the chain rule.
    """
    hn = rms_norm(h_ND, norm, config.norm_eps)
    z = (hn @ head.T).astype(mx.float32)
    if bias is not None:
        z = z + bias
    cap = config.final_softcap
    t = mx.tanh(z / cap) if cap else None
    z = cap * t if cap else z
    valid = (labels_N != UNLABELLED)[:, None]
    index = mx.where(valid, labels_N[:, None], 0)
    top = mx.max(z, axis=-1, keepdims=True)
    e = mx.exp(z - top)
    total = mx.sum(e, axis=-1, keepdims=True)
    target = mx.take_along_axis(z, index, axis=-1)
    loss = weight * mx.sum(mx.where(valid, mx.log(total) + top - target, 0.0))
    row = mx.where(valid, weight, 0.0)
    dz = e * (row / total)
    dz = mx.put_along_axis(dz, index, mx.take_along_axis(dz, index, axis=-1) - row, axis=-1)
    if cap:
        dz = dz * (1 - t * t)
    dhn = dz.astype(hn.dtype) @ head
    _, (dh,) = mx.vjp(lambda h: rms_norm(h, norm, config.norm_eps), [h_ND], [dhn])
    return loss, dh
