"""Makes the model and the chats that ship with mlxtrain: `mlxtrain/assets/default.gguf` and `default_chats.jsonl`.

    python tools/make_default_model.py "$(python tools/fetch.py chitchat)"

A llama-architecture model of 2.0 M parameters, trained from random weights on two sources: chitchat-dataset 0.9.0 (MIT;
real conversations, selected and cleaned by `default_corpus.py`) and small talk from the templates of `default_text.py`
(MIT, this repository). Its BPE vocabulary is trained on the same text. Matrices and the tied embedding are stored as
Q8_0. The chats come from `default_chats.py` (MIT, this repository); the model made here never sees them.

Takes about 30 minutes on one core with AVX512-BF16, much longer on one without. Needs torch, tokenizers and gguf. Seeds
are pinned, but the bits of the weights depend on the machine, torch's version and the thread count (bf16 products).
"""

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import default_chats
import default_corpus
import default_text
import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F

ASSETS = Path(__file__).resolve().parent.parent / "mlxtrain" / "assets"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 0, 1, 2, as in SmolLM2
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
VOCAB, DIM, LAYERS, HEADS, KV_HEADS, HIDDEN, CONTEXT = 2048, 192, 4, 4, 2, 512, 512
THETA, EPS = 10_000.0, 1e-5
DESCRIPTION = (
    "A very small chat model made for mlxtrain's first run: trained from random weights on cleaned conversations of "
    "chitchat-dataset 0.9.0 (MIT) and on templates of small talk written for mlxtrain (MIT), by "
    "tools/make_default_model.py. For demonstration and tests; it makes things up."
)


# -------------------------------------------------------------------------------------------------------------- corpus


def messages(turns: list[str], skip: int) -> default_text.Chat:
    """A conversation's turns from `skip` on as chat messages, the first one the user's."""
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns[skip:])]


def render(chat: default_text.Chat, rng: random.Random | None = None) -> str:
    """`chat` as the template renders it; with `rng`, some users write without capitals and end marks."""
    casual = rng is not None and rng.random() < 0.3
    text = ""
    for message in chat:
        content = message["content"]
        if casual and message["role"] == "user":
            content = content.lower().rstrip(".?!") or content
        text += f"<|im_start|>{message['role']}\n{content}<|im_end|>\n"
    return text + SPECIALS[0]


def held_out(key: str) -> bool:
    """About 3 % of the conversations, chosen by their id."""
    return int(hashlib.sha256(key.encode()).hexdigest(), 16) % 100 < 3


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE with SmolLM's pre-tokenizer (single digits, then GPT-2's pattern)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Stream:
    """Endless training windows. Epoch by epoch, every real conversation (from its first or second turn, so that both
    speakers are learnt) mixed with freshly drawn small talk; a window starts where a user's message does, if it can."""

    def __init__(self, real: list[list[str]], tokenizer: Tokenizer, written: float, seed: int):
        self.real, self.tokenizer, self.written = real, tokenizer, written
        self.rng, self.epoch, self.ids, self.at = random.Random(seed), 0, np.zeros(0, np.int64), 0
        self.user = tokenizer.encode("user").ids[0]

    def _refill(self) -> None:
        chats = [messages(turns, (self.epoch + i) % 2 if len(turns) > 2 else 0) for i, turns in enumerate(self.real)]
        real_size = sum(len(m["content"]) for chat in chats for m in chat)
        size = 0
        while size < self.written / (1 - self.written) * real_size:
            chats.append(default_text.small_talk(self.rng))
            size += sum(len(m["content"]) for m in chats[-1])
        self.rng.shuffle(chats)
        encoded = self.tokenizer.encode_batch([render(chat, self.rng) for chat in chats])
        rest = self.ids[self.at :]
        self.ids = np.concatenate([rest, *[np.asarray(e.ids, np.int64) for e in encoded]])
        self.epoch, self.at = self.epoch + 1, 0

    def batch(self, rows: int, length: int) -> Tensor:
        """int64 [rows, length + 1]."""
        out = np.empty((rows, length + 1), np.int64)
        for row in out:
            if self.at + length + 1 > len(self.ids):
                self._refill()
            row[:] = self.ids[self.at : self.at + length + 1]
            # The exchange cut off at the end starts the next window, unless it is most of this one.
            starts = np.flatnonzero((row[:-1] == 1) & (row[1:] == self.user))
            self.at += int(starts[-1]) if len(starts) and starts[-1] > length // 2 else length
        return torch.from_numpy(out)


# --------------------------------------------------------------------------------------------------------------- model


class Block(nn.Module):
    """One llama block; parameter names are GGUF's. RoPE turns adjacent pairs, so q and k are stored as they are."""

    def __init__(self):
        super().__init__()
        head = DIM // HEADS
        self.attn_norm, self.ffn_norm = nn.RMSNorm(DIM, EPS), nn.RMSNorm(DIM, EPS)
        self.attn_q, self.attn_output = linear(DIM, DIM), linear(DIM, DIM)
        self.attn_k, self.attn_v = linear(DIM, KV_HEADS * head), linear(DIM, KV_HEADS * head)
        self.ffn_gate, self.ffn_up, self.ffn_down = linear(DIM, HIDDEN), linear(DIM, HIDDEN), linear(HIDDEN, DIM)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """[B, T, DIM] → [B, T, DIM]."""
        y = self.attn_norm(x)
        q = rotate(self.attn_q(y).unflatten(-1, (HEADS, -1)), cos, sin).transpose(1, 2)
        k = rotate(self.attn_k(y).unflatten(-1, (KV_HEADS, -1)), cos, sin).transpose(1, 2)
        v = self.attn_v(y).unflatten(-1, (KV_HEADS, -1)).transpose(1, 2)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        # Written out and in the products' dtype: on CPUs torch's fused attention is slower in bf16 at this size.
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)) + mask.to(q.dtype)
        with torch.autocast("cpu", enabled=False):
            weights = torch.softmax(scores, -1)
        x = x + self.attn_output(torch.matmul(weights, v).transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Model(nn.Module):
    """Decoder with a tied head."""

    def __init__(self):
        super().__init__()
        self.token_embd, self.blk = nn.Embedding(VOCAB, DIM), nn.ModuleList(Block() for _ in range(LAYERS))
        self.output_norm = nn.RMSNorm(DIM, EPS)
        nn.init.normal_(self.token_embd.weight, std=0.02)
        for block in self.blk:
            nn.init.zeros_(block.attn_output.weight)
            nn.init.zeros_(block.ffn_down.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [B, T] → logits [B, T, VOCAB]."""
        length, half = ids.shape[1], DIM // HEADS // 2
        angles = torch.arange(length)[:, None] * THETA ** (-torch.arange(half) / half)
        mask = torch.full((length, length), -1e4).triu(1)
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, angles.cos()[:, None], angles.sin()[:, None], mask)
        return F.linear(self.output_norm(x), self.token_embd.weight)


def linear(rows: int, columns: int) -> nn.Linear:
    layer = nn.Linear(rows, columns, bias=False)
    nn.init.normal_(layer.weight, std=rows**-0.5)
    return layer


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def loss_of(model: Model, window: Tensor, bf16: bool = True) -> Tensor:
    """Mean cross-entropy (nats) of int64 [B, T+1], in fp32."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = model(window[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())


# ------------------------------------------------------------------------------------------------------------ training


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised by five Newton-Schulz steps (Jordan et al. 2024), for the matrices.

    For matrices that train for few tokens it gets further than AdamW.
    """

    def __init__(self, params, lr: float):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 0.05)
                x = p.grad.lerp(momentum, 0.95)
                p.mul_(1 - group["lr"] * 0.05)
                p.add_(orthogonal(x), alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(x: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly: singular values end between 0.7 and 1.2 (the paper's quintic)."""
    tall = x.shape[0] > x.shape[1]
    x = (x.T if tall else x).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if tall else x).float()


def train(model: Model, stream: Stream, minutes: float, steps: int, tokens: int, report: Callable[[], str]) -> int:
    """`steps` steps of `tokens` tokens, or as many as fit in `minutes` if that is given; returns the tokens seen.

    Windows of 256, for the last fifth 512. Learning rates warm up over 100 steps and fall to zero over the second half.
    """
    matrices = [p for p in model.blk.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    optimizers = [Muon(matrices, 0.02), torch.optim.AdamW(others, 4e-3, betas=(0.9, 0.95), weight_decay=0.0)]
    peaks = [group["lr"] for o in optimizers for group in o.param_groups]
    begin, step, seen, smooth = time.time(), 0, 0, 0.0
    while True:
        done = (time.time() - begin) / (60 * minutes) if minutes else step / steps
        if done >= 1:
            return seen
        length = 256 if done < 0.8 else 512
        rate = min(1.0, (step + 1) / 100, 2 * (1 - done))
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * rate
        loss = loss_of(model, stream.batch(tokens // length, length))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step, seen = step + 1, seen + tokens
        smooth = loss.item() if step == 1 else 0.98 * smooth + 0.02 * loss.item()
        if step % 250 == 0:
            elapsed = time.time() - begin
            print(f"step {step} loss {smooth:.3f} {seen / elapsed:.0f} tokens/s {elapsed:.0f} s {report()}", flush=True)


@torch.no_grad()
def evaluate(model: Model, chats: list[default_text.Chat], tokenizer: Tokenizer) -> dict[str, float]:
    """Mean loss in nats per token of `chats` (each by itself, cut at the context): of all tokens, and of replies."""
    total, reply, count, replies = 0.0, 0.0, 0, 0
    header = len(tokenizer.encode("assistant\n").ids)
    for chat in chats:
        ids = torch.tensor(tokenizer.encode(render(chat).removesuffix(SPECIALS[0])).ids[: CONTEXT + 1])
        nll = F.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="none")
        starts, ends = (ids == 1).nonzero()[1::2, 0].tolist(), (ids == 2).nonzero()[1::2, 0].tolist()
        spans = [nll[a + header : b] for a, b in zip(starts, ends, strict=False)]  # nll[i] is that of token i + 1
        total, count = total + nll.sum(), count + len(nll)
        reply, replies = reply + sum(s.sum() for s in spans), replies + sum(len(s) for s in spans)
    return {"all": float(total) / count, "replies": float(reply) / replies, "tokens": count}


@torch.no_grad()
def answer(model: Model, tokenizer: Tokenizer, question: str, limit: int = 50) -> str:
    """The greedy reply to one question."""
    ids = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
    start = len(ids)
    while len(ids) < start + limit and (new := int(model(torch.tensor([ids]))[0, -1].argmax())) not in (0, 1, 2):
        ids.append(new)
    return tokenizer.decode(ids[start:])


# ------------------------------------------------------------------------------------------------------------- writing


def write_gguf(model: Model, tokenizer: Tokenizer, path: Path) -> None:
    """The model as Q8_0 blocks and F32 norms, with its vocabulary and template."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("mlxtrain default chat")
    writer.add_description(DESCRIPTION)
    writer.add_license("mit")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(DIM // HEADS)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(VOCAB)
    state = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if t in SPECIALS else gguf.TokenType.NORMAL for t in tokens])
    writer.add_token_merges([" ".join(pair) for pair in state["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
    for name, weight in model.state_dict().items():
        data = weight.numpy().astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if data.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Everything in order; prints what it measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("chitchat", type=Path, help="dataset.json of chitchat-dataset 0.9.0")
    parser.add_argument("--out", type=Path, default=ASSETS)
    parser.add_argument("--chats-only", action="store_true", help="write default_chats.jsonl and stop")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--minutes", type=float, default=0.0, help="stop by the clock instead (not repeatable)")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--written", type=float, default=0.25, help="share of the text that comes from the templates")
    parser.add_argument("--threads", type=int, default=1, help="bf16 products change with it")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    chats = default_chats.build(args.seed)
    with open(args.out / "default_chats.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"messages": chat}, ensure_ascii=False) + "\n" for chat in chats)
    if args.chats_only:
        return

    pieces = default_corpus.load(args.chitchat)
    real = [turns for key, turns in pieces if not held_out(key)]
    unseen = [messages(turns[: len(turns) // 2 * 2], 0) for key, turns in pieces if held_out(key)]
    rng = random.Random(args.seed)
    written = [render(default_text.small_talk(rng), rng) for _ in range(5000)]
    tokenizer = train_tokenizer([render(messages(turns, 0), rng) for turns in real] + written)
    stream = Stream(real, tokenizer, args.written, args.seed)
    model = Model()
    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters; {len(real)} training chats, {len(unseen)} held out")

    def report() -> str:
        loss = evaluate(model, unseen[:60], tokenizer)["all"]
        return f"held out {loss:.3f} | {answer(model, tokenizer, 'Hi, how are you?')}"

    seen = train(model, stream, args.minutes, args.steps, args.batch_tokens, report)
    figures = evaluate(model, unseen, tokenizer)
    print(f"{seen:,} tokens seen in {stream.epoch} epochs; held out: " + json.dumps(figures))
    print(f"perplexity {math.exp(figures['all']):.2f}, of the replies {math.exp(figures['replies']):.2f}")
    for question in ("Hi, how are you?", "what do you like to do?", "What is your favorite food?", "Tell me a story."):
        print(">", question, "\n<", answer(model, tokenizer, question))
    write_gguf(model, tokenizer, args.out / "default.gguf")
    print(f"default.gguf {(args.out / 'default.gguf').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
