"""What all tokenizers share: special tokens split off first, ids back to bytes, beginning and end tokens."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable

from mlxtrain.errors import UserError
from mlxtrain.tokenizer.vocab import BYTE, CONTROL, LSTRIP, NORMAL, RSTRIP, UNKNOWN, USER_DEFINED, Vocab

_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")
_SPACES = " \t\n\v\f\r"  # C's isspace: what lstrip and rstrip attributes strip


class Tokenizer(ABC):
    """Text to token ids and back, as `llama_tokenize` has it.

    Attributes: `model`, `pre` (names in the GGUF), `vocab_size`, `bos_id`, `eos_id`, `unk_id`, `pad_id` (None where the
    vocabulary has none), `add_bos`, `add_eos` (what `add_special` adds), `eog_ids` (ids that end a generation).
    """

    _add_space_prefix = False  # encoding puts a space before a text

    def __init__(self, vocab: Vocab, *, add_bos: bool = False):
        """add_bos: where the file does not say."""
        self._vocab = vocab
        self.model, self.pre = vocab.model, vocab.pre
        self.vocab_size = len(vocab.tokens)
        self.bos_id, self.eos_id = vocab.special.get("bos"), vocab.special.get("eos")
        self.unk_id, self.pad_id = vocab.special.get("unk"), vocab.special.get("pad")
        self.eog_ids: frozenset[int] = vocab.eog_ids
        self.add_bos = vocab.flag("add_bos_token", add_bos)
        self.add_eos = vocab.flag("add_eos_token", False)
        self._tail_id = self.eos_id  # what add_eos adds
        self._set_ends()
        for name, added, i in (("bos", self.add_bos, self.bos_id), ("eos", self.add_eos, self._tail_id)):
            if added and i is None:
                raise vocab.error(
                    f"add_{name}_token is set, but the vocabulary has no such token; convert the model again"
                )
        special = vocab.special_tokens()
        user_defined = [i for i in special if not vocab.attributes[i] & (CONTROL | UNKNOWN)]
        self._finders = {True: _SpecialFinder(vocab, special), False: _SpecialFinder(vocab, user_defined)}
        self._bytes: dict[int, bytes] = {}

    def _set_ends(self) -> None:  # noqa: B027  most models have none
        """A tokenizer model's own say over `add_bos`, `add_eos` and the token at the end."""

    # -- text to ids ------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, parse_special: bool = True, add_special: bool = True) -> list[int]:
        """Token ids of `text`.

        parse_special: texts of control tokens become those tokens; otherwise they are plain text. User-defined tokens
        match either way. add_special: add the beginning and end tokens that the vocabulary asks for.
        Raises `UserError` where `text` is not valid Unicode (a lone surrogate).
        """
        ids: list[int] = []
        self._encode(text, parse_special, add_special, ids, None)
        return ids

    def encode_with_offsets(
        self, text: str, *, parse_special: bool = True, add_special: bool = True
    ) -> tuple[list[int], list[int]]:
        """Token ids and, for each, where it starts in `text.encode("utf-8")`: 0 for an added beginning token, the
        length for an added end token. A token that begins with an added space starts where the text does."""
        ids: list[int] = []
        starts: list[int] = []
        self._encode(text, parse_special, add_special, ids, starts)
        return ids, starts

    def _encode(
        self, text: str, parse_special: bool, add_special: bool, ids: list[int], starts: list[int] | None
    ) -> None:
        ascii_only = text.isascii()
        size = len(text) if ascii_only else len(_utf8(text))
        if add_special and self.add_bos:
            ids.append(self.bos_id)
            if starts is not None:
                starts.append(0)
        after_special, at, offset = True, 0, 0
        for start, end, special in self._finders[parse_special].partition(text):
            if starts is not None:
                offset += start - at if ascii_only else len(text[at:start].encode())
                at = start
            if special is None:
                self._encode_text(text[start:end], after_special, ids, starts, offset)
            else:
                ids.append(special)
                if starts is not None:
                    starts.append(offset)
            after_special = special is not None
        if add_special and self.add_eos:
            ids.append(self._tail_id)
            if starts is not None:
                starts.append(size)

    @abstractmethod
    def _encode_text(
        self, text: str, after_special: bool, ids: list[int], starts: list[int] | None, offset: int
    ) -> None:
        """Append the ids of plain `text`, which begins at byte `offset` of the whole."""

    # -- ids to text ------------------------------------------------------------------------------------------------

    def token_text(self, token: int) -> str:
        """The token as the vocabulary writes it."""
        return self._vocab.tokens[token]

    def is_control(self, token: int) -> bool:
        return bool(self._vocab.attributes[token] & CONTROL)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token adds to a text; control tokens give their own text, unused ones nothing."""
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._piece(token)
        return data

    def _piece(self, token: int) -> bytes:
        text, attribute = self._vocab.tokens[token], self._vocab.attributes[token]
        raw = text.encode("utf-8", "surrogateescape")
        if attribute & (CONTROL | UNKNOWN | USER_DEFINED):
            return raw
        if attribute & NORMAL:
            return self._plain_bytes(text, raw)
        if attribute & BYTE:
            return bytes([int(text[3:5], 16)]) if _BYTE_TOKEN.fullmatch(text) else raw
        return b""

    def _plain_bytes(self, text: str, raw: bytes) -> bytes:
        """Bytes of a normal token, whose vocabulary text is `text` (`raw` in UTF-8)."""
        return text.replace("▁", " ").encode("utf-8", "surrogateescape")

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Where encoding puts a space before the text, one leading space is taken away again. skip_special: leave out
        control and unknown tokens. llama.cpp's cosmetic `clean_spaces` is not done.
        """
        pieces, first = [], self._add_space_prefix
        for token in ids:
            special = self._vocab.attributes[token] & (CONTROL | UNKNOWN)
            if special and skip_special:
                continue
            piece = self.token_bytes(token)
            if first and not special:
                piece, first = piece.removeprefix(b" "), False
            pieces.append(piece)
        return b"".join(pieces).decode("utf-8", "replace")


class _SpecialFinder:
    """Splits special tokens off a text: the longest first over the whole text, then the next, as llama.cpp does.

    That order is not the one of a left-to-right scan, so a scan only tells which tokens occur at all.
    """

    def __init__(self, vocab: Vocab, ids: list[int]):
        self._texts = {vocab.tokens[i]: (rank, i) for rank, i in enumerate(ids)}
        self._attributes = {i: vocab.attributes[i] for i in ids}
        self._lengths: dict[str, list[int]] = {}
        for text in self._texts:
            lengths = self._lengths.setdefault(text[:2], [])
            if len(text) not in lengths:
                lengths.append(len(text))
        firsts = "".join(re.escape(char) for char in sorted({text[0] for text in self._texts}))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def partition(self, text: str) -> list[tuple[int, int, int | None]]:
        """(start, end, special token or None) of each part, in order; stripped whitespace is in none."""
        if not text:
            return []
        parts: list[tuple[int, int, int | None]] = [(0, len(text), None)]
        for _, token, needle in sorted(self._present(text)):
            pieces: list[tuple[int, int, int | None]] = []
            for part in parts:
                if part[2] is None:
                    self._split(text, part[0], part[1], needle, token, pieces)
                else:
                    pieces.append(part)
            parts = pieces
        return parts

    def _present(self, text: str) -> set[tuple[int, int, str]]:
        found: set[tuple[int, int, str]] = set()
        if self._first is None:
            return found
        for match in self._first.finditer(text):
            at = match.start()
            for key in (text[at : at + 2], text[at]):
                for length in self._lengths.get(key, ()):
                    piece = text[at : at + length]
                    if piece in self._texts:
                        found.add((*self._texts[piece], piece))
        return found

    def _split(self, text: str, start: int, end: int, needle: str, token: int, pieces: list) -> None:
        attribute = self._attributes[token]
        while (at := text.find(needle, start, end)) >= 0:
            left = len(text[start:at].rstrip(_SPACES)) + start if attribute & LSTRIP else at
            if left > start:
                pieces.append((start, left, None))
            start = at + len(needle)
            pieces.append((at, start, token))
            if attribute & RSTRIP:
                start = end - len(text[start:end].lstrip(_SPACES))
        if start < end:
            pieces.append((start, end, None))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"text is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} at character {error.start}; "
            "expected UTF-8, repair the text"
        ) from None
