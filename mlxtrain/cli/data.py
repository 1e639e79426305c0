"""mlxtrain data"""

from pathlib import Path

import click

from mlxtrain.cli import print_json
from mlxtrain.cli.options import gguf_option, json_option, template_option

_SHOWN = 20  # faults printed without --json


@click.group("data")
def command() -> None:
    """Look at training data before a run."""


@command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@gguf_option
@click.option("--seq-len", type=click.IntRange(min=1), default=512, show_default=True, help="tokens a row in training")
@click.option(
    "--loss-on",
    type=click.Choice(["assistant", "all"]),
    default="assistant",
    show_default=True,
    help="which tokens are learned",
)
@click.option(
    "--show", type=click.IntRange(min=0), default=0, help="print this many rows with what is learned between marks"
)
@template_option
@json_option
def check(
    file: Path, gguf: Path, seq_len: int, loss_on: str, show: int, chat_template: Path | None, as_json: bool
) -> int:
    """Rows, tokens and supervised tokens of FILE, and each bad row by line. Exits 2 where there is a bad row."""
    from mlxtrain.base import Base
    from mlxtrain.data.examples import Encoder, Report, load_examples, windows
    from mlxtrain.errors import UserError

    if show and as_json:
        raise UserError("--show prints text: leave out --json")
    base = Base(gguf, chat_template)
    examples, loaded = load_examples(file, Encoder(base.tokenizer, base.template, loss_on))
    report = Report(faults=loaded.faults)
    windows(examples, seq_len, report)
    if as_json:
        print_json({**vars(report), "file": str(file), "seq_len": seq_len})
    else:
        click.echo(f"{file}: {report.sentence()}; longest row {report.longest:,} tokens")
        for example in examples[:show]:
            click.echo(f"--- line {example.line}\n{_marked(base.tokenizer, example)}")
        for fault in report.faults[:_SHOWN]:
            click.echo(fault)
        if len(report.faults) > _SHOWN:
            click.echo(f"... and {len(report.faults) - _SHOWN:,} more bad rows (--json has them all)")
    if not report.supervised and not as_json:
        click.echo("nothing to learn: a chat needs an assistant's turn within --seq-len tokens, a text two tokens")
    return 2 if report.faults or not report.supervised else 0


def _marked(tokenizer, example) -> str:
    """The row's text with [[ and ]] around what is learned."""
    parts, inside = [], False
    for token, target in zip(example.ids.tolist(), example.targets.tolist(), strict=True):
        if target != inside:
            parts.append(b"[[" if target else b"]]")
            inside = target
        parts.append(tokenizer.token_bytes(token))
    return b"".join(parts + [b"]]"] * inside).decode("utf-8", "replace")
