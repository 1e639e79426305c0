"""Options: one declaration, checked, and back from TOML as they were."""

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlxtrain.cli import cli
from mlxtrain.config import LoraConfig, checked, flag, from_table, from_toml, to_toml
from mlxtrain.errors import UserError


def test_toml_round_trip():
    config = LoraConfig(gguf=Path('a "b"\\c.gguf'), lr=3e-5, steps=7, rslora=True, warmup=0, targets="q,v")
    assert from_toml(LoraConfig, to_toml(config), "run") == config
    assert from_toml(LoraConfig, "", "run") == LoraConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 3", "unknown key 'stepz'"),
        ("steps = '3'", "steps is '3', expected int"),
        ("steps = true", "steps is True, expected int"),
        ("lr = 'fast'", "lr is 'fast', expected float"),
        ("steps = ", "is not TOML"),
        ("rank = 0", "--rank 0: expected at least 1"),
        ("dropout = 1.0", "--dropout 1.0: expected less than 1"),
        ("lr = nan", "--lr nan: expected at least 0"),
        ("alpha = inf", "finite"),
        ("schedule = 'step'", "--schedule 'step': expected one of cosine"),
    ],
)
def test_bad_values_are_named(text, message):
    with pytest.raises(UserError, match=message):
        from_toml(LoraConfig, text, "run.toml")


def test_integers_stand_for_floats():
    assert from_table(LoraConfig, {"lr": 1}, "x").lr == 1.0


def test_every_option_is_a_flag_with_its_default():
    text = CliRunner().invoke(cli, ["lora", "--help"]).output
    for f in dataclasses.fields(LoraConfig):
        assert flag(f.name) in text, f.name
    assert "[default: 0.001]" in " ".join(text.split())
    assert checked(LoraConfig()) == LoraConfig()
