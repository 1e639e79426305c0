"""A prompt to streamed text: as a chat where the model has a template, else continued as it is."""

import codecs
import contextlib
from collections.abc import Iterator
from itertools import islice

from mlxtrain.base import Base
from mlxtrain.data.examples import encode_rendered
from mlxtrain.engine.generate import Generator, Sampling
from mlxtrain.errors import UserError


def prompt_ids(base: Base, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
    """Tokens of a prompt. `raw` continues the text itself. UserError where nothing is left to continue."""
    if system and base.template is None:
        raise UserError(f"--system: {base.gguf.path} has no chat template; give one by --chat-template")
    if raw or base.template is None:
        ids = base.tokenizer.encode(prompt)
    else:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        try:
            text = base.template.render(messages, prompt=True)
        except ValueError as error:
            raise UserError(f"{base.gguf.path}: {error}; continue the text itself by --raw") from None
        ids = encode_rendered(base.tokenizer, text)[0]
    if not ids:
        raise UserError("--prompt: is empty, and the model has no token to begin a text with; give some text")
    return ids


def stream(
    generator: Generator, base: Base, ids: list[int], sampling: Sampling, max_tokens: int
) -> Iterator[tuple[int, str]]:
    """Tokens and the text each completes, until the model ends its turn, `max_tokens` or the model's context; bytes of
    a character that is not whole yet wait for the rest. UserError where the prompt leaves no room."""
    room = generator.decoder.config.context - len(ids)
    if room <= 0:
        raise UserError(
            f"--prompt: has {len(ids)} tokens, but the model's context is {generator.decoder.config.context}"
        )
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with contextlib.closing(generator.tokens(ids, sampling)) as tokens:
        for token in islice(tokens, min(max_tokens, room)):
            if token in base.tokenizer.eog_ids:
                break
            yield token, decoder.decode(base.tokenizer.token_bytes(token))
    yield -1, decoder.decode(b"", final=True)


def reply(generator: Generator, base: Base, prompt: str, sampling: Sampling, max_tokens: int) -> Iterator[str]:
    """The text of an answer, in pieces."""
    for _, text in stream(generator, base, prompt_ids(base, prompt), sampling, max_tokens):
        yield text
