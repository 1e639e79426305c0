"""Options: declared once, as fields of a frozen dataclass. Flags, TOML and the tables in the docs derive from them."""

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mlxtrain.errors import UserError

C = TypeVar("C")


def option(
    default: Any, help: str, *, choices: tuple[str, ...] = (), minimum: float | None = None, below: float | None = None
) -> Any:
    """A field with its help text and the values it takes: one of `choices`, at least `minimum`, less than `below`."""
    return field(default=default, metadata={"help": help, "choices": choices, "minimum": minimum, "below": below})


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """A LoRA run."""

    gguf: Path | None = option(None, "the model: a GGUF file (the first of a split one); default: the embedded example")
    data: Path | None = option(
        None, "training rows: JSONL with messages, prompt and completion, or text; or a text file"
    )
    out: Path | None = option(None, "run directory; default: runs/lora-N with the next free N")
    val_data: Path | None = option(None, "rows for the held-out loss; default: rows split off --data")
    val_rows: int | None = option(None, "rows split off --data; default: one in twenty, at most 32", minimum=0)
    chat_template: Path | None = option(None, "a Jinja chat template to use instead of the model's own")
    date: str | None = option(None, "the date that chat templates are told, like 2026-01-31; default: today")
    loss_on: str = option(
        "assistant", "which tokens are learned: the assistant's turns, or all", choices=("assistant", "all")
    )
    steps: int = option(200, "optimizer steps", minimum=1)
    batch_size: int = option(4, "rows a step", minimum=1)
    seq_len: int | None = option(None, "tokens a row; default: 512, or the model's context if shorter", minimum=1)
    targets: str = option("q", "projections to adapt: a list of q,k,v,o,gate,up,down, or all")
    layers: str = option("all", "layers to adapt: all, last:N, or numbers and ranges from 0 like 0-3,7")
    rank: int = option(8, "rank of the adapters", minimum=1)
    alpha: float = option(16.0, "the adapters' contribution is scaled by alpha/rank", minimum=1e-6)
    rslora: bool = option(False, "scale by alpha/sqrt(rank) instead (rank-stabilised LoRA)")
    dropout: float = option(0.0, "dropout on the adapters' input", minimum=0, below=1)
    lr: float = option(1e-3, "highest learning rate", minimum=0, below=3.4e38)
    schedule: str = option("cosine", "learning rate after the warm-up", choices=("cosine", "linear", "constant"))
    warmup: int | None = option(None, "warm-up steps; default: a tenth of the steps, at most 100", minimum=0)
    final_lr: float = option(0.1, "where cosine and linear end, as a fraction of --lr", minimum=0)
    beta1: float = option(0.9, "AdamW: decay of the first moment", minimum=0, below=0.9999999)
    beta2: float = option(0.999, "AdamW: decay of the second moment", minimum=0, below=0.9999999)
    eps: float = option(1e-8, "AdamW: added to the root of the second moment", minimum=1e-30)
    weight_decay: float = option(0.0, "AdamW: decoupled weight decay", minimum=0)
    seed: int = option(
        0, "seed of the initial adapters, the order of rows, the split and dropout", minimum=0, below=2**63
    )
    dtype: str = option(
        "auto", "activations: auto is bf16 on a GPU and fp32 on the CPU", choices=("auto", "f32", "f16", "bf16")
    )
    eval_every: int | None = option(
        None, "steps between held-out losses; default: a quarter of the run, at least 10; 0: ends only", minimum=0
    )
    save_every: int | None = option(
        None, "steps between checkpoints; default: a quarter of the run, at most 50; 0: last only", minimum=0
    )
    keep: int = option(2, "checkpoints kept", minimum=1)


def field_types(cls: type) -> dict[str, tuple[type, bool]]:
    """Each field's plain type, and whether it may be None."""
    result = {}
    for name, hint in typing.get_type_hints(cls).items():
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        plain = [p for p in parts if p is not type(None)]
        result[name] = plain[0], len(plain) < len(parts)
    return result


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def checked(config: C) -> C:
    """The same configuration; UserError names the first option whose value is out of range."""
    for f in dataclasses.fields(config):
        value, meta = getattr(config, f.name), f.metadata
        if value is None:
            continue
        if meta["choices"] and value not in meta["choices"]:
            raise UserError(f"{flag(f.name)} {value!r}: expected one of {', '.join(meta['choices'])}")
        if meta["minimum"] is not None and not value >= meta["minimum"]:  # `not >=` refuses NaN too
            raise UserError(f"{flag(f.name)} {value}: expected at least {meta['minimum']}")
        if meta["below"] is not None and not value < meta["below"]:
            raise UserError(f"{flag(f.name)} {value}: expected less than {meta['below']}")
        if isinstance(value, float) and value == float("inf"):
            raise UserError(f"{flag(f.name)} {value}: expected a finite number")
    return config


def from_toml(cls: type[C], text: str, source: str) -> C:
    """A configuration from TOML with one key for each option; unknown keys and wrong types are refused by name."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source}: is not TOML: {error}") from None
    return from_table(cls, table, source)


def from_table(cls: type[C], table: dict[str, Any], source: str) -> C:
    kinds = field_types(cls)
    values = {}
    for key, value in table.items():
        if key not in kinds:
            raise UserError(f"{source}: unknown key {key!r}; the options are {', '.join(kinds)}")
        kind, _ = kinds[key]
        if kind is Path and isinstance(value, str):
            value = Path(value)
        elif kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind and not (kind is Path and isinstance(value, Path)):
            raise UserError(f"{source}: {key} is {value!r}, expected {kind.__name__.lower()}")
        values[key] = value
    return checked(cls(**values))


def to_toml(config: Any) -> str:
    """One line an option; those that are None are left out."""
    lines = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if value is None:
            continue
        if isinstance(value, bool):
            text = str(value).lower()
        elif isinstance(value, int | float):
            text = repr(value)
        else:
            text = toml_string(str(value))
        lines.append(f"{f.name} = {text}")
    return "\n".join(lines) + "\n"


def toml_string(text: str) -> str:
    """A TOML basic string."""
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
    return '"' + "".join(escapes.get(c, c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}") for c in text) + '"'


def options_table(cls: type) -> str:
    """The options as a Markdown table, for docs/options.md."""
    rows = ["| option | default | what it is |", "| --- | --- | --- |"]
    for f in dataclasses.fields(cls):
        meta = f.metadata
        default = (
            "" if f.default is None else f"`{str(f.default).lower() if isinstance(f.default, bool) else f.default}`"
        )
        text = meta["help"] + (f"; one of {', '.join(meta['choices'])}" if meta["choices"] else "")
        rows.append(f"| `{flag(f.name)}` | {default} | {text} |")
    return "\n".join(rows) + "\n"
