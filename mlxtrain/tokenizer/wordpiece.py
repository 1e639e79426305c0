"""WordPiece (`bert`): text normalised and cut into words, each covered by the longest tokens from the left.

The vocabulary is in llama.cpp's form: a word's first piece begins with U+2581, the others with nothing (`##` in the
original). Source: `llm_tokenizer_wpm_session` in llama.cpp's src/llama-vocab.cpp. Only the first character of a
canonical decomposition is kept, which is what removes accents.
"""

from mlxtrain.tokenizer.base import Tokenizer
from mlxtrain.tokenizer.bpe import Word, WordCache
from mlxtrain.tokenizer.unicode import CONTROL, MARK, PUNCTUATION, SYMBOL, base_character, classes, lower, whitespace
from mlxtrain.tokenizer.vocab import Vocab

# Blocks of which each character is a word. From U+2B920, not U+2B820: the original Rust code has it so.
_CHINESE = [
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
]

_SKIP, _BREAK, _ALONE, _PART = range(4)


class _Characters(dict[str, tuple[int, str]]):
    """What becomes of a character: (what to do, normalised)."""

    def __init__(self, lowercase: bool, strip_accents: bool):
        super().__init__()
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def __missing__(self, char: str) -> tuple[int, str]:
        plain = base_character(char) if self._strip_accents else char
        self[char] = result = self._classify(plain), lower(plain) if self._lowercase else plain
        return result

    def _classify(self, char: str) -> int:
        point = ord(char)
        cls = int(classes()[point])
        if whitespace()[point]:
            return _BREAK
        if point in (0, 0xFFFD) or cls == CONTROL or (cls == MARK and self._strip_accents):
            return _SKIP
        chinese = any(first <= point <= last for first, last in _CHINESE)
        return _ALONE if cls == PUNCTUATION or (cls == SYMBOL and point < 0x7F) or chinese else _PART


class WordPieceTokenizer(Tokenizer):
    def __init__(self, vocab: Vocab):
        super().__init__(vocab)
        if self.unk_id is None:
            raise vocab.error("no unknown token in a bert vocabulary; convert the model again")
        lowercase = vocab.flag("normalizer.lowercase", True)
        self._characters = _Characters(lowercase, vocab.flag("normalizer.strip_accents", lowercase))
        self._longest = max(map(len, vocab.tokens))
        self._words = WordCache(self._word)

    def _set_ends(self) -> None:
        # llama.cpp puts both ends around a text whatever the flags say; the last is the separator.
        self.add_bos = self.add_eos = True
        self._tail_id = self._vocab.special.get("sep")

    def _encode_text(
        self, text: str, after_special: bool, ids: list[int], starts: list[int] | None, offset: int
    ) -> None:
        for word, places in self._split(text, offset):
            tokens, begins, _ = self._words[word]
            ids += tokens
            if starts is not None:
                starts += [places[begin] for begin in begins]

    def _split(self, text: str, offset: int) -> list[tuple[str, list[int]]]:
        """The words, and for each of their characters the byte where it stands."""
        words: list[tuple[str, list[int]]] = []
        chars: list[str] = []
        places: list[int] = []
        for char in text:
            action, plain = self._characters[char]
            if action in (_BREAK, _ALONE) and chars:
                words.append(("".join(chars), places))
                chars, places = [], []
            if action == _ALONE:
                words.append((plain, [offset]))
            elif action == _PART:
                chars.append(plain)
                places.append(offset)
            offset += 1 if char < "\x80" else len(char.encode())
        if chars:
            words.append(("".join(chars), places))
        return words

    def _word(self, text: str) -> Word:
        marked, size = "▁" + text, len(text) + 1
        ids: list[int] = []
        starts: list[int] = []
        at = 0
        while at < size:
            for end in range(min(size, at + self._longest), at, -1):
                token = self._vocab.ids.get(marked[at:end])
                if token is not None:
                    ids.append(token)
                    starts.append(max(at - 1, 0))
                    at = end
                    break
            else:  # no cover: the whole word is unknown
                return (self.unk_id,), (0,), len(text)
        return tuple(ids), tuple(starts), len(text)
