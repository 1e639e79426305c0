"""Byte-level BPE: `gpt2` vocabularies, with a byte alphabet and a pre-tokenizer by name.

A word's merges are done once and kept, so a text costs one split and one dictionary look-up per word.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from mlxtrain.tokenizer.base import Tokenizer
from mlxtrain.tokenizer.pretokenize import Pretokenizer
from mlxtrain.tokenizer.unicode import byte_decode, byte_encode
from mlxtrain.tokenizer.vocab import Vocab

# A word's ids, where each starts (bytes from the word's start), and the word's length in bytes.
Word = tuple[tuple[int, ...], tuple[int, ...], int]


class WordCache(dict[str, Word]):
    """Words made on first use. Bounded: emptied when full, and long words are not kept."""

    def __init__(self, make: Callable[[str], Word], words: int = 1 << 16, length: int = 100):
        super().__init__()
        self._make, self._words, self._length = make, words, length

    def __missing__(self, text: str) -> Word:
        word = self._make(text)
        if len(text) <= self._length:
            if len(self) >= self._words:
                self.clear()
            self[text] = word
        return word


class BPETokenizer(Tokenizer):
    def __init__(self, vocab: Vocab, merges: list[str], pretokenizer: Pretokenizer):
        super().__init__(vocab, add_bos=pretokenizer.add_bos)
        self._ranks = merge_ranks(merges)
        self._split = pretokenizer.split
        self._ignore_merges = pretokenizer.ignore_merges
        self._words = WordCache(self._word)

    def _encode_text(
        self, text: str, after_special: bool, ids: list[int], starts: list[int] | None, offset: int
    ) -> None:
        words = self._words
        if starts is None:
            for piece in self._split(text):
                ids += words[piece][0]
            return
        for piece in self._split(text):
            tokens, begins, size = words[piece]
            ids += tokens
            starts += [offset + begin for begin in begins]
            offset += size

    def _word(self, text: str) -> Word:
        data = text.encode()
        ids: list[int] = []
        starts: list[int] = []
        at = 0
        for symbol in self._merge(byte_encode(data)):
            for token in self._symbol_ids(symbol):
                ids.append(token)
                starts.append(at)
            at += len(symbol)  # a character of the alphabet is a byte
        return tuple(ids), tuple(starts), len(data)

    def _symbol_ids(self, symbol: str) -> list[int]:
        ids = self._vocab.ids
        token = ids.get(symbol)
        if token is not None:
            return [token]
        # As llama.cpp: each UTF-8 byte of the symbol's text as a token, and nothing where there is none.
        singles = (bytes([byte]).decode("utf-8", "surrogateescape") for byte in symbol.encode())
        return [ids[single] for single in singles if single in ids]

    def _merge(self, text: str) -> list[str]:
        """Greedy merges, lowest rank first, then leftmost."""
        if self._ignore_merges and text in self._vocab.ids:
            return [text]
        return merge(list(text), self._ranks, " ")

    def _plain_bytes(self, text: str, raw: bytes) -> bytes:
        data = byte_decode(text)
        return raw if data is None else data


def merge_ranks(merges: list[str]) -> dict[str, int]:
    """Ranks of "left right" (symbols hold no space, so that is a key). Of a merge listed twice the first counts."""
    return dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))


def merge(symbols: list[str], ranks: dict[str, int], joint: str) -> list[str]:
    """Join neighbours by `ranks[left + joint + right]`, lowest first, leftmost of equals, until none is left.

    O(n log n). Ranks may be shared between pairs.
    """
    count = len(symbols)
    get = ranks.get
    pairs = (get(f"{symbols[i]}{joint}{symbols[i + 1]}") for i in range(count - 1))
    heap = [(rank, i) for i, rank in enumerate(pairs) if rank is not None]
    heapify(heap)
    after = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    symbols = list(symbols)
    while heap:
        rank, i = heappop(heap)
        j = after[i]
        # All standing pairs are queued: an entry whose rank still fits is the lowest there is, any other is stale.
        if not symbols[i] or j >= count or get(f"{symbols[i]}{joint}{symbols[j]}") != rank:
            continue
        symbols[i] += symbols[j]
        symbols[j] = ""
        k = after[i] = after[j]
        if k < count:
            before[k] = i
        for left in (before[i], i):
            if left >= 0 and after[left] < count:
                rank = get(f"{symbols[left]}{joint}{symbols[after[left]]}")
                if rank is not None:
                    heappush(heap, (rank, left))
    return [symbol for symbol in symbols if symbol]
