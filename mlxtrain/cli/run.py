"""mlxtrain run"""

import tomllib
from pathlib import Path

import click

from mlxtrain.cli import print_json
from mlxtrain.cli.lora import print_outcome
from mlxtrain.cli.options import json_option, warn_if_slow
from mlxtrain.errors import UserError

RECIPES = ("lora",)


@click.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--resume", is_flag=True, help="go on from the last checkpoint of the run's directory")
@json_option
def command(file: Path, resume: bool, as_json: bool) -> int:
    """Run a recipe from a TOML file: `recipe = "lora"`, then one key for each option. Relative paths are looked up from
    the current directory."""
    from mlxtrain.recipes.run_lora import run_lora

    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file}: cannot be read as TOML ({error})") from None
    recipe = table.pop("recipe", None)
    if recipe not in RECIPES:
        raise UserError(f"{file}: recipe is {recipe!r}, expected one of {', '.join(RECIPES)}")
    table.pop("versions", None)  # so that a run's own config.toml can be run again
    warn_if_slow()
    outcome = run_lora(table, resume, say=lambda text: click.echo(text, err=as_json), source=str(file))
    return print_outcome(outcome, print_json if as_json else None)
