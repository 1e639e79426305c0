"""Chat templates: the model's own Jinja text, rendered in a sandbox, and where each assistant turn stands in the
result."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlxtrain.errors import UserError

Span = tuple[int, int]
_MARK = "\ue000turn{}\ue001"  # private-use characters: no template looks for them, none strips them
_MARKS = re.compile("\ue000turn\\d+\ue001")


class RewrittenTurn(ValueError):
    """The template does not show an assistant turn as it is written in the data."""


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


class ChatTemplate:
    """A compiled chat template. The environment is the one templates are written for (trim_blocks, lstrip_blocks, loop
    controls, `raise_exception`, `strftime_now`, `tojson`); it can reach no Python object, but nothing limits its time
    or memory. `date` is what `strftime_now` tells; default: now."""

    def __init__(
        self, source: str, *, bos: str = "", eos: str = "", path: str = "chat template", date: datetime | None = None
    ):
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = (date or datetime.now()).strftime
        environment.filters["tojson"] = _to_json
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(
                f"{path}: the chat template does not parse: {error}; give another by --chat-template"
            ) from None

    def render(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool = False, **extra: Any) -> str:
        """The conversation as text; with `prompt`, followed by the header of the assistant's next turn.

        Raises ValueError where the template refuses the conversation (roles that do not alternate, say).
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=prompt, **self._tokens, **extra)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refuses the conversation: {error}") from None
        except Exception as error:  # a template is somebody's program, and may raise whatever Python can
            raise ValueError(f"the chat template fails on the conversation: {error!r}") from None

    def render_turns(self, messages: Sequence[Mapping[str, Any]], **extra: Any) -> tuple[str, list[Span]]:
        """The conversation as text, and the character span of every assistant turn's content in it, in order.

        The turns are found by rendering once more with a mark in place of each: what surrounds the marks must surround
        the turns. White space that the template trims off a turn is no part of its span. Raises RewrittenTurn where the
        template shows a turn otherwise than written, ValueError where it refuses the conversation.
        """
        text = self.render(messages, **extra)
        turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        marked = [{**m, "content": _MARK.format(i)} if i in turns else m for i, m in enumerate(messages)]
        around = _MARKS.split(self.render(marked, **extra))
        contents = [messages[i]["content"] for i in turns]
        spans = _between(text, around, contents) if len(around) == len(turns) + 1 else None
        return text, spans if spans is not None else _search(text, "\ue002".join(around), turns, contents)


def _between(text: str, around: Sequence[str], contents: Sequence[str]) -> list[Span] | None:
    """Spans of the contents, where the text is `around` with the contents between its parts; else None."""
    if not text.startswith(around[0]):
        return None
    at, spans = len(around[0]), []
    for index, (content, after) in enumerate(zip(contents, around[1:], strict=True)):
        last = index == len(contents) - 1
        for shown in dict.fromkeys((content, content.strip(), content.rstrip(), content.lstrip())):
            rest = at + len(shown)
            fits = text[rest:] == after if last else text.startswith(after, rest)
            if text.startswith(shown, at) and fits:
                spans.append((at, rest))
                at = rest + len(after)
                break
        else:
            return None
    return spans


def _search(text: str, others: str, turns: Sequence[int], contents: Sequence[str]) -> list[Span]:
    """For templates whose frame depends on the turn itself (one that looks for `</think>`): each turn must stand in the
    text exactly once, after the one before, and nowhere in `others`, the text without the turns."""
    at, spans = 0, []
    for turn, content in zip(turns, contents, strict=True):
        shown = content.strip()
        start = text.find(shown, at)
        if not shown or start < 0 or text.count(shown) > 1 or shown in others:
            raise RewrittenTurn(
                f"the chat template does not show messages[{turn}] as it is written (it cuts or rewrites the text), so "
                "its tokens cannot be found; change the turn to what the template shows, or use 'text' rows"
            )
        spans.append((start, start + len(shown)))
        at = start + len(shown)
    return spans
