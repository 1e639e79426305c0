"""A GGUF opened for use: the file, its tokenizer, its chat template, the embedded example."""

from datetime import datetime
from functools import cached_property
from importlib import resources
from pathlib import Path

from mlxtrain.data.chat import ChatTemplate
from mlxtrain.errors import UserError
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.config import DecoderConfig, decoder_config
from mlxtrain.tokenizer import Tokenizer, load_tokenizer


def embedded(name: str) -> Path:
    """A file that ships in the package: default.gguf or default_chats.jsonl (tools/make_default_model.py makes
    both)."""
    return Path(str(resources.files("mlxtrain") / "assets" / name))


class Base:
    """A model file and what its metadata gives. Raises UserError as the reader, tokenizer and template do."""

    def __init__(self, path: str | Path, chat_template: Path | None = None, date: datetime | None = None):
        self.gguf = GGUF(path)
        self._template_path, self._date = chat_template, date

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.gguf.metadata, str(self.gguf.path))

    def decoder(self, seq_len: int | None = None) -> DecoderConfig:
        """The model's configuration. UserError where the vocabulary has tokens without an embedding, or `seq_len` is
        beyond the context."""
        config = decoder_config(self.gguf, seq_len)
        if self.tokenizer.vocab_size > config.vocab:
            raise UserError(
                f"{self.gguf.path}: {self.tokenizer.vocab_size} tokens, but tensor 'token_embd.weight' has "
                f"{config.vocab} rows; the file is of two models"
            )
        if seq_len is not None and seq_len > config.context:
            raise UserError(f"--seq-len {seq_len}: the model's context is {config.context}; give at most that")
        return config

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template: the file's own unless another was given; None where there is none."""
        if self._template_path is not None:
            try:
                source, path = self._template_path.read_text(encoding="utf-8"), str(self._template_path)
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"{self._template_path}: the chat template cannot be read ({error})") from None
        else:
            source, path = self.gguf.key("tokenizer.chat_template", str, ""), str(self.gguf.path)
        if not source:
            return None
        bos, eos = (
            "" if token is None else self.tokenizer.token_text(token)
            for token in (self.tokenizer.bos_id, self.tokenizer.eos_id)
        )
        return ChatTemplate(source, bos=bos, eos=eos, path=path, date=self._date)
