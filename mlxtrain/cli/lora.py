"""mlxtrain lora"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mlxtrain.cli import print_json
from mlxtrain.cli.options import config_flags, given, json_option, warn_if_slow
from mlxtrain.config import LoraConfig

if TYPE_CHECKING:
    from mlxtrain.recipes.run_lora import Outcome


@click.command("lora")
@config_flags(LoraConfig)
@click.option(
    "--resume", is_flag=True, help="go on with the run in --out (default: the newest) from its last checkpoint"
)
@click.option("--prompt", help="answer this before and after training")
@json_option
def command(resume: bool, prompt: str | None, as_json: bool, **values: Any) -> int:
    """Train a LoRA adapter on a GGUF model; llama.cpp loads the result on the very same file.

    With neither --gguf nor --data it runs on a small embedded model and chats, so that the whole path can be seen.
    """
    from mlxtrain.recipes.run_lora import run_lora

    warn_if_slow()
    outcome = run_lora(given(values), resume, prompt, say=lambda text: click.echo(text, err=as_json))
    return print_outcome(outcome, print_json if as_json else None)


def print_outcome(outcome: "Outcome", print_json: Callable[[Any], None] | None) -> int:
    """Tell what a run came to; returns its exit code."""
    evals = sorted(outcome.held_out)
    if print_json is not None:
        print_json(
            {
                "adapter": str(outcome.adapter),
                "step": outcome.step,
                "first_loss": outcome.first_loss,
                "last_loss": outcome.last_loss,
                "held_out": outcome.held_out,
                "peak_memory": outcome.peak_memory,
            }
        )
        return outcome.exit_code
    if len(evals) > 1:
        first, last = evals[0], evals[-1]
        ends = f"{outcome.held_out[first]:.4f} (step {first}) -> {outcome.held_out[last]:.4f} (step {last})"
        click.echo(f"held-out loss {ends}")
    if outcome.exit_code:
        click.echo(f"stopped at step {outcome.step} of {outcome.steps}")
        click.echo(f"go on: mlxtrain lora --resume --out {outcome.directory}")
    click.echo(f"adapter: {outcome.adapter}")
    return outcome.exit_code
