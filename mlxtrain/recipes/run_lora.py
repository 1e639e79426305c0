"""A whole LoRA run, from files to an adapter, top to bottom."""

import dataclasses
import hashlib
import tomllib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxtrain.base import Base, embedded
from mlxtrain.config import LoraConfig, checked, from_table, to_toml
from mlxtrain.data.batches import ShuffledBatches, default_held_out, in_order, split, split_document
from mlxtrain.data.examples import Encoder, Example, Report, Window, load_examples, windows
from mlxtrain.engine.batch import Batch
from mlxtrain.engine.generate import Generator, Sampling
from mlxtrain.errors import UserError
from mlxtrain.export.gguf_adapter import write_adapter
from mlxtrain.files import cached_sha256, sampled_sha256, sha256
from mlxtrain.fixture import StandardFixture
from mlxtrain.recipes.lora import LoRA, compute_dtype
from mlxtrain.recipes.reply import reply
from mlxtrain.train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from mlxtrain.train.events import EventLog
from mlxtrain.train.loop import Loop
from mlxtrain.train.progress import Progress
from mlxtrain.train.rundir import RunDirectory, choose
from mlxtrain.train.signals import StopRequest, stop_on_signals

# What `mlxtrain lora` alone does: a run on the embedded model and chats that ends within a minute on two cores.
EMBEDDED = {"steps": 140, "batch_size": 4, "seq_len": 160, "lr": 8e-3, "targets": "all"}
EMBEDDED_PROMPT = "Hi, how are you?"

_NO_TARGETS = "a chat needs an assistant's turn that begins within --seq-len tokens, a text two tokens"

# Options that say where things go and how often, not what is computed: a resumed run may change them.
_FREE = ("out", "eval_every", "save_every", "keep")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to. Losses are means in nats over labelled tokens."""

    directory: Path
    adapter: Path
    step: int
    steps: int
    first_loss: float | None
    last_loss: float | None
    held_out: dict[int, float]
    peak_memory: int
    exit_code: int


def lora_config(given: dict[str, Any], resume: bool, source: str) -> tuple[LoraConfig, RunDirectory]:
    """Options and directory of a run from what was given: to resume, on top of what the run was started with; with
    neither a model nor data, on top of the embedded example's."""
    out = from_table(LoraConfig, given, source).out
    run = choose(out, resume)
    if resume:
        try:
            table = tomllib.loads(run.config.read_text(encoding="utf-8", errors="surrogateescape"))
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{run.config}: is damaged ({error}); repair it or start another run") from None
        table.pop("versions", None)
        table.pop("recipe", None)
        return from_table(LoraConfig, {**table, **given}, str(run.config)), run
    if given.get("gguf") is None and given.get("data") is None:
        given = {**EMBEDDED, **given}
    config = from_table(LoraConfig, given, source)
    if config.val_data is not None and config.val_rows is not None:
        raise UserError("--val-rows splits rows off --data, --val-data brings rows of its own; give one of them")
    if config.gguf is not None and config.data is None:
        raise UserError("--data is missing: give the rows to train on (JSONL with messages, or a text file)")
    if config.gguf is None and config.data is not None:
        raise UserError("--gguf is missing: give the model to train on")
    if config.warmup is not None and config.warmup > config.steps:
        raise UserError(f"--warmup {config.warmup}: expected at most --steps {config.steps}")
    return config, run


def _prepare_data(
    config: LoraConfig, encoder: Encoder, note: Callable[[str], None]
) -> tuple[list[Window], list[Window]]:
    """Training and held-out windows; what was cut or dropped is said. UserError names the first bad row."""

    def load(path: Path) -> list[Example]:
        examples, report = load_examples(path, encoder)
        if report.faults:
            more = f" ({len(report.faults) - 1} more: mlxtrain data check)" if len(report.faults) > 1 else ""
            raise UserError(report.faults[0] + more)
        return examples

    examples = load(config.data)
    if config.val_data is not None:
        held_out = load(config.val_data)
    elif config.val_rows is None and len(examples) == 1:
        examples, held_out = split_document(examples[0])
    else:
        count = default_held_out(len(examples)) if config.val_rows is None else config.val_rows
        examples, held_out = split(examples, count, config.seed)
    train_report, val_report = Report(), Report()
    train, val = windows(examples, config.seq_len, train_report), windows(held_out, config.seq_len, val_report)
    note(f"train: {train_report.sentence()}")
    if config.val_data and not val:
        raise UserError(f"{config.val_data}: has no row to score; {_NO_TARGETS}")
    if not train:
        raise UserError(f"{config.data}: has no row to train on; {_NO_TARGETS}")
    if held_out:
        note(f"held out: {val_report.sentence()}")
    return train, val


def run_lora(
    given: dict[str, Any],
    resume: bool = False,
    prompt: str | None = None,
    say: Callable[[str], None] = print,
    source: str = "options",
) -> Outcome:
    """Train an adapter. `given` are the options that were given (keys of LoraConfig); `prompt` is answered before and
    after.

    Raises UserError before anything is written where input is wrong, RunError where the run fails.
    """
    config, run = lora_config(given, resume, source)
    prompt = EMBEDDED_PROMPT if prompt is None and config.gguf is None else prompt
    config = dataclasses.replace(config, date=config.date or datetime.now().strftime("%Y-%m-%d"))
    base = Base(config.gguf or embedded("default.gguf"), config.chat_template, _date(config.date))
    config = _resolved(config, base)

    recipe = LoRA(config)
    recipe.realize(base.gguf)
    encoder = Encoder(base.tokenizer, base.template, config.loss_on)
    train, held_out = _prepare_data(config, encoder, say)
    data_digest = sha256([config.data, *([config.val_data] if config.val_data else [])])
    fixture = StandardFixture(batches=ShuffledBatches(train, config.batch_size, config.seed), config=config)
    fingerprint = _fingerprint(config, base, train, held_out)
    recipe.build()
    run, initial = run.claim(), recipe.state.params
    if resume:
        _restore(run, recipe, fingerprint)
        if recipe.state.step >= config.steps:
            say(f"{run.path}: is done already, all {config.steps} steps")
    else:
        run.events.unlink(missing_ok=True)  # of a run that ended before its first checkpoint
    run.write_config(config)
    trainable = sum(p.size for p in recipe.state.params.values())
    say(
        f"{base.gguf.path.name}: {base.gguf.architecture}, {base.gguf.nbytes / 1e6:.0f} MB; "
        f"{trainable:,} trainable parameters in {len(recipe.projections)} matrices -> {run.path}"
    )
    if prompt and not resume:
        say(f"prompt: {prompt}")
        say(f"before: {_answer(recipe, base, prompt)}")
        mx.clear_cache()  # the answer needed the whole model, training does not
        mx.reset_peak_memory()
    with ThreadPoolExecutor(1) as pool, stop_on_signals(say) as stop:
        digest = pool.submit(cached_sha256, base.gguf.paths)  # beside training: hashing needs neither MLX nor the GIL
        loop = _loop(recipe, fixture, run, config, in_order(held_out, config.batch_size), stop, fingerprint)
        loop.base = None if run.has_base_loss() else initial
        _train(loop, run, base, recipe, config, trainable)
        peak = mx.get_peak_memory()
        _export(run, recipe, base, config, digest, data_digest)
    if prompt and stop.signal is None:
        say(f"after:  {_answer(recipe, base, prompt)}")
    return Outcome(
        directory=run.path,
        adapter=run.adapter,
        step=recipe.state.step,
        steps=config.steps,
        first_loss=loop.losses[0] if loop.losses else None,
        last_loss=loop.losses[-1] if loop.losses else None,
        held_out=loop.held_out_losses,
        peak_memory=peak,
        exit_code=stop.exit_code,
    )


def _resolved(config: LoraConfig, base: Base) -> LoraConfig:
    """Fill in what depends on the model. UserError where the sequence is longer than the model's context."""
    context = base.decoder(config.seq_len).context
    quarter = config.steps // 4
    return checked(
        dataclasses.replace(
            config,
            gguf=config.gguf or embedded("default.gguf"),
            data=config.data or embedded("default_chats.jsonl"),
            seq_len=config.seq_len or min(512, context),
            eval_every=max(10, quarter) if config.eval_every is None else config.eval_every,
            save_every=max(1, min(50, quarter)) if config.save_every is None else config.save_every,
        )
    )


def _date(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        raise UserError(f"--date {text!r}: expected a date like 2026-01-31") from None


def _fingerprint(config: LoraConfig, base: Base, train: list[Window], held_out: list[Window]) -> dict[str, Any]:
    """What must be equal for a resumed run to be the same run: the options, the model, and every token and target,
    which hold what data, tokenizer, template and split come to."""
    tokens = hashlib.sha256()
    for window in [*train, *held_out]:
        tokens.update(window.ids.tobytes() + window.labels.tobytes())
    options = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name not in _FREE}
    for name in ("gguf", "data", "val_data", "chat_template"):
        del options[name]  # the files may have moved; their content counts
    return {**options, "base": sampled_sha256(base.gguf.paths), "tokens": tokens.hexdigest()}


def _restore(run: RunDirectory, recipe: LoRA, fingerprint: dict[str, Any]) -> None:
    checkpoint = latest_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise UserError(f"{run.path}: holds no checkpoint yet; start the run again, without --resume")
    load_checkpoint(checkpoint, recipe.state, fingerprint)
    run.forget_after(recipe.state.step)


def _loop(
    recipe: LoRA,
    fixture: StandardFixture,
    run: RunDirectory,
    config: LoraConfig,
    held_out: list[Batch],
    stop: StopRequest,
    fingerprint: dict[str, Any],
) -> Loop:
    return Loop(
        recipe=recipe,
        fixture=fixture,
        log=EventLog(run.events),
        progress=Progress(config.steps, recipe.state.step),
        stop=stop,
        steps=config.steps,
        held_out=held_out,
        eval_every=config.eval_every,
        save_every=config.save_every,
        save=lambda: save_checkpoint(run.checkpoints, recipe.state, fingerprint, config.keep),
        base=None,
    )


def _train(loop: Loop, run: RunDirectory, base: Base, recipe: LoRA, config: LoraConfig, trainable: int) -> None:
    """Run the loop between its first and last event."""
    state, log = recipe.state, loop.log
    log.write(
        "run_start", recipe="lora", step=state.step, steps=config.steps, base=base.gguf.path.name, trainable=trainable
    )
    reason = "failed"
    try:
        loop.run()
        reason = "done" if loop.stop.signal is None else f"signal {loop.stop.signal}"
    finally:
        log.write("run_end", step=state.step, reason=reason, peak_memory=mx.get_peak_memory())
        log.close()
        loop.progress.close()


def _export(
    run: RunDirectory, recipe: LoRA, base: Base, config: LoraConfig, digest: Future[str], data_digest: str
) -> None:
    provenance = {
        "base.name": base.gguf.paths[0].name,
        "base.size": base.gguf.nbytes,
        "base.sha256": digest.result(),
        "base.sample": sampled_sha256(base.gguf.paths),
        "data.sha256": data_digest,
        "step": recipe.state.step,
        "recipe": to_toml(
            dataclasses.replace(config, gguf=None, data=None, val_data=None, out=None, chat_template=None)
        ),
    }
    write_adapter(run.adapter, recipe.state.params, scale=recipe.scale, base=base.gguf, provenance=provenance)


def _answer(recipe: LoRA, base: Base, prompt: str) -> str:
    generator = Generator(
        recipe.weights,
        recipe.projections,
        recipe.state.params,
        scale=recipe.scale,
        dtype=compute_dtype(recipe.config.dtype),
    )
    return "".join(reply(generator, base, prompt, Sampling(), max_tokens=40)).strip().replace("\n", " ")
