"""mlxtrain tokenize"""

import sys
from pathlib import Path

import click

from mlxtrain.cli import print_json
from mlxtrain.cli.options import gguf_option, json_option


@click.command("tokenize")
@gguf_option
@click.option("--file", type=click.Path(path_type=Path), help="JSONL whose rows carry 'text', or a text file")
@click.option("--text", help="a text")
@click.option(
    "--no-special", is_flag=True, help="add no beginning or end token, and read control tokens' text as plain text"
)
@json_option
def command(gguf: Path, file: Path | None, text: str | None, no_special: bool, as_json: bool) -> None:
    """Token ids, token for token what llama.cpp makes of the same file."""
    from mlxtrain.base import Base
    from mlxtrain.data.rows import read_rows
    from mlxtrain.errors import UserError

    if (file is None) == (text is None):
        raise UserError("tokenize: give either --file or --text")
    tokenizer = Base(gguf).tokenizer
    if text is not None:
        texts = [("--text", text)]
    else:
        texts = []
        for row in read_rows(file):
            if isinstance(row, UserError):
                raise row
            if row.kind != "text":
                raise row.fault("has no 'text'")
            texts.append((f"{row.path}:{row.line}", row.value["text"]))
    for where, each in texts:
        try:
            ids = tokenizer.encode(each, parse_special=not no_special, add_special=not no_special)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        if as_json:
            print_json({"ids": ids})
        else:
            sys.stdout.write(" ".join(map(str, ids)) + "\n")
