# ruff: noqa: RUF001
"""Texts for comparing tokenizers: fixed ones that show known difficulties, and seeded random Unicode."""

import random
from collections.abc import Sequence

FIXED = [
    "",
    " ",
    "\n",
    "Hello world",
    " Hello  world,   it's 3 o'clock; they'LL've I'd we'Re 'S 'tis ''s",
    "The quick brown fox — “jumps” over 13 lazy dogs… 1234567890 ½ ¼ ² Ⅷ ٣٤٥ १२३ 1,234.56e-7",
    "def f(x):\n\treturn {'a': [x**2 for _ in range(10)]}  # comment\r\n\r\n\n    if x != y:\n        pass\n",
    '#include <stdio.h>\nint main(void) { printf("%d\\n", 0xFF & ~mask); return 0; } // ++i --j <<= >>=',
    "SELECT * FROM t WHERE a='b''c' AND d<>1;--\n<div class=\"x\">&nbsp;</div>\n$x = @{y}; `ls -la | grep ^foo$`",
    "Grüße aus Köln, naïve façade Ǆ ǅ ǆ ß ẞ İstanbul ıI ſ K Å Ω",
    "Привет, мир! Ελληνικά κείμενα. Հայերեն. ქართული ენა",
    "שלום עולם مرحبا بالعالم، هل أنت بخير؟ هٰذَا ٱلْكِتَابُ۔",
    "नमस्ते दुनिया। বাংলা ভাষা తెలుగు தமிழ் ไทยไม่มีช่องว่าง ភាសាខ្មែរ မြန်မာ ລາວ",
    "你好，世界！漢字とかな交じり文。ﾊﾝｶｸ 한국어 텍스트입니다 ㄅㄆㄇ 𠮷野家 豈 丽",
    "👨‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☕️ 😀😃 1️⃣ 🧑🏿‍🚀 \U0001fae8 \U0001f6dc",
    "e\u0301 a\u0300\u0323 Z\u0351\u036b\u0343a\u0363l\u0348g\u0334o\u0489 \u0301 \u0483x",
    "\x00\x01\x07\x08\x0b\x0c\x0e\x1b\x1c\x1d\x1e\x1f\x7f\x80\x85\x9f",
    "tabs\t\tand \t mixed \n \n\n   \t\r\n \r\r trailing   ",
    "a\u00a0b\u2003c\u3000d\u200be\u2028f\u2029g\u1680h\u202fi\u205fj \u00a0\u3000 \u2000\u2000x",
    "\ufeffBOM \u200d\u200c\u2060 \ufe0f \ufffd \ufffe \uffff \U0010ffff \ue000 \U000f0000 \u0378 \u2fe0 \U000e0001",
    "▁literal ▁▁ lower one eighth ▁block▁ <0x0A> <0xE2> ##piece Ġword Ċ",
    "~" * 33 + "=" * 70 + " " * 40 + "\n" * 9 + "\t" * 7 + "-" * 17,
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 111111111111111111111",
    "camelCaseWords HTTPServerError iPhone15Pro XMLHttpRequest'sÄÖÜ ÉCOLE École éCOLE word1word 12abc34",
    "¿Qué? ¡Así! «guillemets» ‹x› ‘q’ 、。・「」！＂＃＠［］｛｝～ ａＢ９ ⅷ ㊗ № ℃ ™ ← ∑ ▶ ♠ €£¥₹",
    "IMGIMGABCDZ IMGIMGABCDEZ <sentinel:12> <sentinel:x>",
    "http://example.com/a?b=c&d=%20e#f user@host.org C:\\dir\\file.txt 2024-01-31T23:59:59Z 192.168.0.1",
    "word's word’s WORD'S 'LL 'Ve 'rE'm'D x'ſ l'été d'accord",
    "Line one. \n\n Line two;\t\n  \nend/\n// slash\r\n/",
]

_RANGES = [
    (6, 0x20, 0x7E),
    (2, 0x00, 0x1F),
    (2, 0x80, 0xFF),
    (2, 0x100, 0x24F),
    (2, 0x300, 0x36F),
    (2, 0x370, 0x52F),
    (2, 0x590, 0x6FF),
    (2, 0x900, 0xDFF),
    (2, 0xE00, 0x109F),
    (1, 0x10A0, 0x1CFF),
    (1, 0x1D00, 0x1FFF),
    (3, 0x2000, 0x206F),
    (2, 0x20A0, 0x2BFF),
    (1, 0x2C00, 0x2FFF),
    (3, 0x3000, 0x30FF),
    (2, 0x3400, 0x9FFF),
    (1, 0xA000, 0xABFF),
    (2, 0xAC00, 0xD7FF),
    (1, 0xE000, 0xF8FF),
    (2, 0xF900, 0xFFFF),
    (2, 0x10000, 0x1FFFF),
    (2, 0x1F300, 0x1FAFF),
    (1, 0x20000, 0x323AF),
    (2, 0x323B0, 0x10FFFF),
]

_FRAGMENTS = [
    *" \t\n\r\v\f'’",
    "  ",
    "   ",
    "\r\n",
    "\n\n",
    " \n",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u0085",
    "'s",
    "'T",
    "'ll",
    "'RE",
    "1",
    "22",
    "333",
    "4444",
    "٣",
    "²",
    "a",
    "B",
    "the",
    " The",
    "Word",
    "ing",
    "é",
    "E\u0301",
    "\u0301",
    "ß",
    "İ",
    "日本",
    "你好",
    "한글",
    "।",
    "…",
    "。",
    "!",
    "?!",
    "...",
    "/",
    "//",
    "$",
    "`",
    "_",
    "-",
    "<",
    ">",
    "|",
    "=",
    "▁",
    "▁▁",
    "👍🏽",
    "👨‍👩‍👧",
    "\u200d",
    "\ufe0f",
]


def random_texts(count: int, seed: int, specials: Sequence[str] = ()) -> list[str]:
    """`count` strings of 1 to 24 parts.

    Parts are code points from a mix of ranges (unassigned, private, combining and astral ones among them, no
    surrogates), fragments that splitters care about, and texts of special tokens, whole or cut short.
    """
    rng = random.Random(seed)
    ranges = [(first, last) for weight, first, last in _RANGES for _ in range(weight)]
    texts = []
    for _ in range(count):
        one_range = rng.choice(ranges) if rng.random() < 0.3 else None
        fragments = rng.choice([0.1, 0.3, 0.6])
        parts = []
        for _ in range(rng.randint(1, 24)):
            draw = rng.random()
            if specials and draw < 0.04:
                special = rng.choice(specials)
                parts.append(special if rng.random() < 0.7 else special[: rng.randint(1, len(special))])
            elif draw < fragments:
                parts.append(rng.choice(_FRAGMENTS))
            else:
                parts.append(chr(_not_surrogate(rng.randint(*(one_range or rng.choice(ranges))))))
        texts.append("".join(parts))
    return texts


def _not_surrogate(point: int) -> int:
    return point + 0x800 if 0xD800 <= point < 0xE000 else point
