"""mlxtrain eval"""

import math
from pathlib import Path

import click

from mlxtrain.cli import print_json
from mlxtrain.cli.options import (
    adapter_option,
    dtype_option,
    gguf_option,
    json_option,
    template_option,
    warn,
    warn_if_slow,
)


@click.command("eval")
@gguf_option
@adapter_option
@click.option("--data", required=True, type=click.Path(path_type=Path), help="a JSONL or text file")
@click.option(
    "--seq-len",
    type=click.IntRange(min=1),
    default=None,
    help="tokens a window; default: 1024, or the model's context if shorter",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=4, show_default=True, help="windows run at once")
@click.option(
    "--loss-on",
    type=click.Choice(["assistant", "all"]),
    default="assistant",
    show_default=True,
    help="which tokens of chats count",
)
@template_option
@dtype_option
@json_option
def command(
    gguf: Path,
    adapter: Path | None,
    data: Path,
    seq_len: int | None,
    batch_size: int,
    loss_on: str,
    chat_template: Path | None,
    dtype: str,
    as_json: bool,
) -> None:
    """Mean loss in nats, and perplexity.

    A text row or a plain file is one document: every token after the first counts once, in windows that overlap by one
    token. Chat rows count what training labels.
    """
    from mlxtrain.recipes.score import score

    warn_if_slow()
    result, report = score(
        gguf,
        data,
        adapter,
        seq_len=seq_len,
        batch_size=batch_size,
        loss_on=loss_on,
        chat_template=chat_template,
        dtype=dtype,
        warn=warn,
    )
    if as_json:
        print_json({"loss": result.loss, "perplexity": result.perplexity, "tokens": result.tokens})
        return
    click.echo(report.sentence(), err=True)
    perplexity = f"{result.perplexity:.4f}" if math.isfinite(result.perplexity) else "beyond any number"
    click.echo(f"loss {result.loss:.6f} nats, perplexity {perplexity}, {result.tokens:,} tokens")
