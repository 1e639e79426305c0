"""The `mlxtrain` command. Subcommands are imported when they are called, so that `--help` answers at once."""

import importlib
import json
import sys
from typing import Any

import click

from mlxtrain import __version__
from mlxtrain.errors import RunError, UserError

COMMANDS = {
    "lora": ("mlxtrain.cli.lora", "Train a LoRA adapter on a GGUF; alone, on a small embedded example."),
    "run": ("mlxtrain.cli.run", "Run a recipe from a TOML file."),
    "generate": ("mlxtrain.cli.generate", "Continue a prompt, with or without an adapter."),
    "eval": ("mlxtrain.cli.evaluate", "Loss and perplexity of a text or JSONL, with or without an adapter."),
    "tokenize": ("mlxtrain.cli.tokenize", "Token ids of a text or JSONL, as llama.cpp has them."),
    "inspect": ("mlxtrain.cli.inspect", "What is in a GGUF, whether it is sound, what a run would cost."),
    "data": ("mlxtrain.cli.data", "Look at training data before a run."),
    "doctor": ("mlxtrain.cli.doctor", "What this machine runs on; --check proves the numbers on it."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and help, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0])
        return module.command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mlxtrain")
def cli() -> None:
    """Train the file you run: LoRA and more on GGUF models, with MLX."""


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False))


def main() -> None:
    """Entry point: errors made for people are one line; exit codes are 0 done, 1 failed, 2 wrong input, 128+n signal
    n."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a file's metadata and names may hold any bytes
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except (UserError, RunError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except OSError as error:
        click.echo(f"error: {error.filename or 'a file'}: {error.strerror or error}", err=True)
        sys.exit(1)
