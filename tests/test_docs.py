"""The documents tell the truth: option tables, the tree, links, and commands that exist."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlxtrain.cli import COMMANDS, cli
from mlxtrain.config import LoraConfig, from_toml, options_table
from mlxtrain.gguf.blocks import DECODABLE
from mlxtrain.models.config import ARCHITECTURES

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


def test_the_option_table_is_that_of_the_dataclass():
    # To renew it: python -c "from mlxtrain.config import *; print(options_table(LoraConfig))"
    assert options_table(LoraConfig) in (ROOT / "docs" / "options.md").read_text()


def test_the_readme_tree_is_the_tree():
    readme = (ROOT / "README.md").read_text()
    tree = readme.split("<!-- tree -->")[1].split("```")[1]
    named, parents = set(), []
    for line in tree.strip("\n").splitlines():
        match = re.match(r"^( *)(\S+?)(/?)(  .*|$)", line)
        depth = len(match[1]) // 2
        parents = [*parents[:depth], match[2]]
        path = ROOT / "/".join(parents)
        assert path.exists(), line
        named.add(path)
    packages = {p.parent for p in (ROOT / "mlxtrain").rglob("*.py")}
    modules = {p for p in (ROOT / "mlxtrain").rglob("*.py") if p.name != "__init__.py"}
    for module in modules | packages:
        assert module in named or module.parent in named, f"{module.relative_to(ROOT)} is in no line of the tree"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_flags_exist(page):
    known = {name: CliRunner().invoke(cli, [name, "--help"]).output for name in COMMANDS}
    known["data"] += CliRunner().invoke(cli, ["data", "check", "--help"]).output
    for line in re.findall(r"^\s*(?:\S*bin/)?mlxtrain (.+)$", page.read_text(), re.MULTILINE):
        command = line.split()[0]
        if command.startswith("-"):
            continue
        assert command in known, line
        for flag in re.findall(r"(?<=\s)--[a-z-]+", line):
            assert flag in known[command], f"{page.name}: {line}: {flag}"


def test_recipes_are_configurations():
    import tomllib

    for path in (ROOT / "recipes").glob("*.toml"):
        table = tomllib.loads(path.read_text())
        assert table["recipe"] == "lora"
        from_toml(LoraConfig, re.sub(r"^recipe .*$", "", path.read_text(), flags=re.MULTILINE), path.name)


def test_the_pages_name_every_architecture_and_block_type():
    text = (ROOT / "docs" / "gguf.md").read_text()
    assert all(f"`{name}`" in text for name in ARCHITECTURES)
    assert all(re.search(rf"\b{name}\b", text) for name in DECODABLE)
