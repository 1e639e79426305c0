"""Pre-tokenizers of byte-level BPE, by the name in `tokenizer.ggml.pre`: how a text is cut into words before merging.

A pre-tokenizer is a list of expressions. Each cuts every piece that the one before left; what lies between two matches
is a piece of its own. Where an expression names a Unicode class (`\\p{L}` ...) it runs on the collapsed text
(unicode.py), otherwise on the text itself; in both `\\s`, `\\d` and ranges of letters are ASCII. That is llama.cpp's
reading of them, and deviates from the original tokenizers where llama.cpp does. Names, flags and expressions:
`llama_vocab::impl::load`, `llm_tokenizer_bpe` in llama.cpp's src/llama-vocab.cpp, and the splitters in src/unicode.cpp.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mlxtrain.tokenizer.unicode import ascii_whitespace, collapse

_CLASS = {
    "L": "A-Za-z\x81",
    "N": "0-9\x82",
    "M": "\x83",
    "P": "!-#%-*,-/:;?@\\[-\\]_{}\x84",
    "S": "$+<=>\\^`|~\x85",
}

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACES

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_NUMBERS = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
_LLAMA3 = _CONTRACTION + "|" + _NUMBERS % r"\p{N}{1,3}"
_QWEN2 = _CONTRACTION + "|" + _NUMBERS % r"\p{N}"
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _LINES
_DEEPSEEK3 = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_HAN_KOREAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_SENTENCE = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"


def _words(upper: str, lower: str, suffix: str, number: str) -> str:
    """Words of upper, then lower case (GPT-4o's scheme), each class given as the expression of one character."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
    return words + f"|{number}|" + r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES


# llama.cpp tells case in ASCII only, other letters count as both; or, with the two classes spelled out, nowhere.
_CASED = (r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])")
_CASED_MARKS = (r"(?:(?=[\p{L}\p{M}])[^a-z])", r"(?:(?=[\p{L}\p{M}])[^A-Z])")
_UNCASED = (r"[\p{L}\p{M}]", r"[\p{L}\p{M}]")

# Digits in threes from the right; llama.cpp leaves the text before a number on its first group.
_DIGITS_FROM_RIGHT = r"[^\p{N}]*(?:\p{N}{1,2}(?=(?:\p{N}{3})*(?!\p{N}))|\p{N}{3})|[^\p{N}]+"

# Letters of cased scripts, as the DeepSeek LLM tokenizer lists them.
_CASED_SCRIPTS = (
    "A-Za-z"
    "\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_FULL_WIDTH_PUNCTUATION = "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|" + _CJK
)
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff"
    "\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_JAIS2_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s"
_THREES = r"[0-9][0-9][0-9]"

# Expressions, in the order they cut; each followed by the names that use it.
_RECIPES: list[tuple[list[str], str]] = [
    ([r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", _THREES], "default"),
    (
        [_GPT2],
        "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code "
        "roberta-bpe mpt olmo jais trillion granite-docling exaone4",
    ),
    ([r"\p{N}", _GPT2], "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2"),
    (
        [_LLAMA3],
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe chatglm-bpe "
        "glm4 glm5",
    ),
    ([_QWEN2], "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    ([_QWEN35], "qwen35"),
    ([_words(*_CASED, "", r"\p{N}")], "tekken"),
    ([_words(*_CASED, _CONTRACTION + "?", r"\p{N}{1,3}")], "gpt-4o llama4 kanana2 talkie minimax-m2"),
    ([_words(*_CASED_MARKS, _CONTRACTION + "?", r"\p{N}{1,3}")], "granite-embed-multi-97m"),
    ([_DIGITS_FROM_RIGHT, _words(*_UNCASED, _CONTRACTION + "?", r"\p{N}{1,3}")], "tiny_aya cohere2moe"),
    ([_YOUTU, _words(*_UNCASED, _CONTRACTION + "?", r"\p{N}")], "youtu"),
    (
        [
            "[\r\n]",
            rf"\s?[{_CASED_SCRIPTS}]+",
            rf"\s?[!-/:-~{_FULL_WIDTH_PUNCTUATION}]+",
            r"\s+\Z",
            _HAN_KOREAN,
            r"\p{N}+",
        ],
        "deepseek-llm",
    ),
    (["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_KOREAN, r"\p{N}"], "deepseek-coder"),
    (
        [r"\p{N}{1,3}", _CJK, _DEEPSEEK3 + r"[\r\n]*|" + _LINES],
        "deepseek-v3 hunyuan-dense hy_v4 joyai-llm",
    ),
    ([r"\p{N}{1,3}", _CJK, _DEEPSEEK3 + r"|[\r\n]|" + _SPACES, r"\p{N}"], "spark2_5"),
    ([_DIGITS_FROM_RIGHT, _AFMOE_SCRIPTS, _DEEPSEEK3 + r"[\r\n]*|" + _LINES], "afmoe"),
    ([r"[\p{P}$+<=>^~|`]+", _GPT2, _THREES], "falcon"),
    ([_SENTENCE], "poro-chat bloom gpt3-finnish"),
    ([_SENTENCE, r"\p{N}"], "viking"),
    (
        [
            r"<sentinel:[0-9]+>",
            r"IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ],
        "chameleon",
    ),
    ([r"\p{N}+", r"(?=(?:\d{3})+(?!\d))"], "superbpe"),
    (
        [_CONTRACTION + "|" + (_NUMBERS % r"\p{N}").replace(r"\s*[\r\n]+", r"\s*[\r\n]")],
        "bailingmoe bailingmoe2 llada-moe",
    ),
    (
        [_CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _LINES],
        "seed-coder",
    ),
    ([_NUMBERS % r"\p{N}"], "ufakzeka"),
    ([r"[^\n]+|[\n]+", _QWEN2], "laguna"),
    (
        [
            _CONTRACTION
            + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|"
            + _SPACES
        ],
        "exaone-moe",
    ),
    ([r"\p{N}{1,3}", _CONTRACTION + "|" + _NUMBERS % r"\p{N}+"], "minicpm5"),
    ([_LLAMA3.replace(_SPACES, _JAIS2_SPACES)], "jais-2"),
]

# Names with flags, as in `Pretokenizer`; the Llama 3 kind has both.
_LLAMA3_KIND = {
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
}
_IGNORE_MERGES = _LLAMA3_KIND | {"minicpm5", "youtu", "glm4", "glm5", "tekken", "granite-embed-multi-97m"}
_ADD_BOS = _LLAMA3_KIND | {"tekken", "chameleon"}

_NAMES = {name: expressions for expressions, names in _RECIPES for name in names.split()}


def _compile(expression: str) -> re.Pattern[str]:
    """`\\p{X}` spelled out as ranges over the collapsed text, in brackets of its own where it stands alone."""
    parts, inside, i = [], False, 0
    while i < len(expression):
        char = expression[i]
        if expression.startswith("\\p{", i):
            ranges = _CLASS[expression[i + 3]]
            parts.append(ranges if inside else f"[{ranges}]")
            i += 5
            continue
        if char == "\\":
            parts.append(expression[i : i + 2])
            i += 2
            continue
        if char == "[" and not inside:
            inside = True
        elif char == "]":
            inside = False
        parts.append(char)
        i += 1
    return re.compile("".join(parts), re.ASCII)


@dataclass
class Pretokenizer:
    """Cuts texts into words. ignore_merges: a word that is a token is not merged. add_bos: that flag's default."""

    expressions: list[str]
    ignore_merges: bool
    add_bos: bool
    _stages: list[tuple[re.Pattern[str], bool]] = field(init=False)

    def __post_init__(self) -> None:
        self._stages = [(_compile(e), "\\p{" in e) for e in self.expressions]

    def split(self, text: str) -> list[str]:
        """The words of `text`, in order; joined they are the text."""
        collapsed = collapse(text)
        wide = ascii_whitespace(text) if any(not classes for _, classes in self._stages) else ""
        ends = [len(text)]
        for pattern, classes in self._stages:
            ends = list(_cut(pattern, collapsed if classes else wide, ends))
        start, words = 0, []
        for end in ends:
            words.append(text[start:end])
            start = end
        return words


def _cut(pattern: re.Pattern[str], text: str, ends: list[int]) -> Iterator[int]:
    """The ends of the pieces that `pattern` leaves of the pieces that end at `ends`."""
    start = 0
    for end in ends:
        for match in pattern.finditer(text, start, end):
            first, last = match.span()
            if first > start:
                yield first
            if last > first:
                yield last
            start = last
        if start < end:
            yield end
        start = end


def names() -> list[str]:
    """The pre-tokenizers covered."""
    return sorted(_NAMES)


def pretokenizer(name: str) -> Pretokenizer | None:
    """The pre-tokenizer called `name` (empty: "default", as llama.cpp has it); None if it is not covered."""
    name = name or "default"
    if name not in _NAMES:
        return None
    return Pretokenizer(_NAMES[name], name in _IGNORE_MERGES, name in _ADD_BOS)
