"""mlxtrain generate"""

from pathlib import Path
from time import perf_counter

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


@click.command("generate")
@gguf_option
@adapter_option
@click.option("--prompt", required=True, help="what to answer, or with --raw to continue")
@click.option("--raw", is_flag=True, help="continue the text as it is instead of answering it as a chat")
@click.option("--system", help="a system message")
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="tokens at most")
@click.option(
    "--temp", type=click.FloatRange(min=0), default=0.0, show_default=True, help="temperature; 0: the likeliest token"
)
@click.option(
    "--top-p", type=click.FloatRange(min=0, max=1, min_open=True), default=1.0, show_default=True, help="nucleus"
)
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="seed of sampling"
)
@template_option
@dtype_option
@json_option
def command(
    gguf: Path,
    adapter: Path | None,
    prompt: str,
    raw: bool,
    system: str | None,
    max_tokens: int,
    temp: float,
    top_p: float,
    seed: int,
    chat_template: Path | None,
    dtype: str,
    as_json: bool,
) -> None:
    """Answer a prompt as a chat, or continue a text."""
    from mlxtrain.base import Base
    from mlxtrain.engine.generate import Sampling
    from mlxtrain.errors import UserError
    from mlxtrain.recipes.reply import prompt_ids, stream
    from mlxtrain.recipes.served import served_generator

    warn_if_slow()
    if raw and (system or chat_template):
        raise UserError("--raw continues the text itself: leave out --system and --chat-template")
    if top_p < 1 and not temp:
        raise UserError("--top-p chooses among tokens drawn at random: give --temp too")
    base = Base(gguf, chat_template)
    ids = prompt_ids(base, prompt, raw=raw, system=system)
    generator = served_generator(base, adapter, dtype, len(ids) + max_tokens, warn)
    start, first, tokens, pieces = perf_counter(), None, [], []
    for token, text in stream(generator, base, ids, Sampling(temperature=temp, top_p=top_p, seed=seed), max_tokens):
        first = first or perf_counter()
        tokens += [token] if token >= 0 else []
        pieces.append(text)
        if not as_json:
            click.echo(text, nl=False)
    seconds = perf_counter() - (first or start)
    rate = (len(tokens) - 1) / seconds if len(tokens) > 1 else None
    if as_json:
        print_json({"text": "".join(pieces), "ids": tokens, "prompt_tokens": len(ids), "tokens_per_s": rate})
    else:
        click.echo()
        click.echo(f"{len(tokens)} tokens" + (f", {rate:.1f} tokens/s" if rate else ""), err=True)
