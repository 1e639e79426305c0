"""The character classes that llama.cpp's splitters see, and GPT-2's byte alphabet.

llama.cpp has the general categories of Unicode 15.1 built in. `unicodedata` and `regex` follow Python's and their own
releases (14.0 to 17.0 today) and differ from it on thousands of code points, so the categories are carried here, 2,272
runs in 3 kB. They equal `unicodedata` 15.1 (Python 3.13) everywhere, and llama.cpp on each of the 1,112,064 code
points. Splitting is done on `collapse(text)`: one character per code point, ASCII kept, everything else replaced by
a stand-in for its class. On that string the standard `re` in ASCII mode is exact, whatever Unicode it knows.
"""

import base64
import functools
import unicodedata
import zlib

import numpy as np

# Classes in the table, in order: unassigned, then the first letters of the general categories.
UNASSIGNED, LETTER, NUMBER, MARK, PUNCTUATION, SYMBOL, CONTROL, SEPARATOR = range(8)

# Run lengths (four byte planes of little-endian uint32), then a class byte per run; zlib, base 85. Surrogates and
# private use are CONTROL. Source: Unicode 15.1 (UnicodeData.txt), as in llama.cpp's src/unicode-data.cpp.
_RUNS = (
    "c-rk+O>8Ac5uU29?w;v4@5lDDpY2^gKYP92?Al&?lil?OLShIciZ+BG!lFe8f(XBfLL?9%xS(8e2%K`u0SSb1;KVhz2*HID7a|S_Atd0+DdK<<zN"
    "((L`@HLgO%x)sdflFRJw4T3RbPEoV`*kYjsi(y$IFh0mT}M;ktf!X;A{g&16rluO5O1hmov{nfF%p)x;}l1UZnU6Z8C+^%#L<Qm*RGLOoUs(;euO"
    "`-kMKX^(7)~6qvC^!o7}a86M-SE$XDTim@veEC^K?dG68@gs9~gVJ?UA%p$E_bTmsbF(>LdDw%mf_jGDgWVNAG`y2$AgSvsKAX!XJgL3k?c8(%^!"
    "B%i3Ia8TsyxNZ|=<c#A!fc@H%Cdwhi>}cHuW(SnuHv#*XmGW7odG=5X_wxYhG|ciV<b@*!y;@D%?ru`DQn0g!6XvY)}lt9=6nZnfD2GQXV%TSMfg"
    "A*aVx-pG5`Ro_b?+AOG<oF?eesUGj^+pJ*kq!G9uT7b`E`_%z%<Mqz{P}ZNMg=56Dh#^(loQqR_zec8!gMH;p)3^l>bUw)ixTwQE;hx)<jM*;Rel"
    "OW}$-^bFWU%j_;YSH@YX<{VeET(^|~_4$!AdT|OVv@|;5YV^DgJrAW-pim18NJCh+Ez6KtA9&^qiB_0&38KZT=lt$W=~7IU(rVb|wB0FXqwjojE^"
    "TlXx7d}Xqj^#HK)2Tp7GT;YjxwV_t9-$tqA&{s<Tiqez$+sGUZ2`j!*>LpmFddpwp;72b-`~^PB<SLK&i#zJz{nbdzSCX3jb@VHGkh@3t#ID&+%$"
    "{Y2g7G@ppJcU;k?WgCN=fdkGeFXizCZCi`fYMqIBi)7AR*<(_3u;+m=e?kK6~ie<xRN&FUlo><aoqeZ<{O2d-6qjai!@Y=zT-F|hJ+lUMIcLkoT@"
    "<R!kHmLZkeBg~Ri#=o804BL0;k=Z5_iTya%m$~~o{pD1Xt!v^$!@1@lmI5l)9FrSNdtln5YfApVQhOYI&P_zDFE$Yu5D3=<y$4Fp2E-Tft-`#S^m"
    "amti4ydw#hf8<(Zk@)7(4Yi-4dO5UO`V>xdCXJiTDG>89!yuR7C(q=Ys^3Q#T69BGPo)_>rg?6~UQ835LHw7WykueftvIwm8j`bYr3>HUz96BwTP"
    "2~6CO4Y{j4-=Y?Ett2$R5AIhBsay<nhN_Qg`Po)(@c{Wa;J8{=d(i3q0-#&=bZ`lUsK;kDdR~ApDC|)EVim#V6*nsBIGl>rMHd&iob%;ulsZ2C$o"
    "@U;dm@Y|)8;BvX@$7#RuYv9E%6JpBAfHEKd9V=Zj_;xyh?Uj%1R{uQcS^ZbPy-3D^K85xxJ1^rYvmew`OUnMpDrImcj5WQP{103Nl#)aaa-5>gJJ"
    "w(fJoI%!*GMVmI9DYaLCm>_)Bz!s~l8j#??S=eF8fEiWG9uGC1USGT+L)WKX`!VAQo0G>T%09=(GD*05jLPEzV-4zKDD5-T8wcocNiRq1sPU?(LD"
    "~^Y-tn-N4wwb9J)qtR$jJ#PK)5ST|B^cJGb=ccZSExI`(x#Wc@=fxsUqAXqZtwLdbbs;itM|rL<?<&`Q-;duy{I7qv$5^GpZn#(K)!q#6Z=ux2kL"
    "T*JO3<SKU4i(44)HSL=ew7DSsqS`?jm_sKK;+?ko?gZ{PPuI>q;S7s`_3P(C#O5l7$e*Zul4)zS-}riV3XtT@zGq(5vmInr^21DOC4Kfz11gvayY"
    "1G!o3%iSeXf_>Lh_wm&bejjOuEoA=wHF|Ex#mI<09Smt^Tac;0J1*&OQHvI0{TtNA(;vkZoS*ri=KiBQ)cutp0Qnz-q|YAG9LvSc(fA*R-1JHz5E"
    "Do=;}I;HInSMKd8+Q>fzYLssr}PSEA4HmB6q^ee~=jz*YC;~0&07=mP-iRUFDGZu_x*dD|Tn`4C{zy#!Iw+GKD{nJ`n!I&v(vspZ(eJFPHt3pQPc"
    "FKm14UO@5P$x7DbawrP8JdBX2|58f?BJUR2;rW!33SN<<Ee9O*j^nR>JbcgG^L#vd_KM9BEpv!Cg4ocWSSFhiwiK<DN+5d6i4;v=8vjyGCANL+{)"
    "xF&{@=DRe&qA?MaK(PE=>5^=-+ZfhYfAEIo3?42wrQKTX}dF8nnEyb(>86>Hf_^3ZFg=9Q9L^1ARXB$PhuE6>yLgTqwo4Ay1qs$NT~37vTn15%}U"
    "`5Cr!7hBB&bgB<KedVz2RCzyjx;y$*$he&<r)ROrVyu%~cdr)*k^d{Q+<C@>Y=_@)}?3YzG;0v!XrbcKE<0~M|~ET;FzU9VU-D~{Z%*++aq?iLbb"
    "8Bbg|DsJv$A(go<acH@1Q0P|+PHwHiY{=4$qiPms<%g^ruY*OBrM=-bX_sQy2(tlffdXJoyVy<r(S0ye=zU#fQJm=Pe6yn*<^3Tf1e&}JMI#*%e*"
    "HA5FalVtvq1_2n5dQk7Q~!yuoxy4wlD`!-76%6VoOL2A0?GKB{t?pNUh+;TFE{(dmkA;W4;kkX>aEHA_j>~62(vim|`EyC`6hBg{NC~hM1v=Ggj$"
    "$O?D;YIhBGX%I~oWaul@;B+WVNFh)N=LE2(ob5|{O-rj+mxaNXwZc1}kue_x$Ss0MG3KU}D8@I2M#gbMzY}Ocz&Q>Y~4OgQq5YPZP8pkzroBSc#s"
    "7`l7{u;PiIk=e#6Z-w6V4>_Vq)~h{goQz84AphT5!G#ior+iRH=rp>BgG`c*-%lbqHN(zPTfT5bIrs&bz5ERtG#9=8%S2#bjah%)zF*u4&tx*Vg)"
    "EGV*8V8+PO&)vOF&u%vCyvp$P~Z;yMgKH<<Yr7Rjv7fg`QjY-K#Bn<f7Q1x?wl%A_mCL;czi0m=C!)YL7>Ij)yhMzRvCt#sYoak!i8bz@VEX|Ca+"
    "<bfKR5zP0EWs?=P*=3AYgD{)6Cf{>OQc{mCGe^U9&pF@82s`6a1377g#u#Km-}Iolx$CpADPWmr9_7tyu2osx+E1|Szx1ODOwp9^T=xoh(-Y4QbI"
    "RuoRh8r>m2&e$R<3DM==pYS`cKXu>g<bm-j6aT=)VYd{x>H8oGJ"
)

_WHITESPACE = [
    *range(0x09, 0x0E),
    0x20,
    0x85,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
]

# Stand-ins for non-ASCII code points in a collapsed text. Whitespace becomes the vertical tab, which \s matches.
STAND_IN = {LETTER: "\x81", NUMBER: "\x82", MARK: "\x83", PUNCTUATION: "\x84", SYMBOL: "\x85"}
_OTHER = "\x80"


@functools.cache
def classes() -> np.ndarray:
    """uint8[0x110000]: the class of each code point."""
    raw = np.frombuffer(zlib.decompress(base64.b85decode(_RUNS)), np.uint8)
    planes = raw.reshape(5, -1)
    lengths = np.ascontiguousarray(planes[:4].T).view("<u4")[:, 0]
    return np.repeat(planes[4], lengths)


@functools.cache
def whitespace() -> np.ndarray:
    """bool[0x110000]: the code points that \\s stands for."""
    table = np.zeros(0x110000, bool)
    table[_WHITESPACE] = True
    return table


@functools.cache
def _collapse_table() -> np.ndarray:
    stand_in = np.full(8, ord(_OTHER), np.uint8)
    for cls, char in STAND_IN.items():
        stand_in[cls] = ord(char)
    table = stand_in[classes()]
    table[whitespace()] = 0x0B
    table[:128] = np.arange(128)
    return table


def codepoints(text: str) -> np.ndarray:
    """uint32[len(text)]"""
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def collapse(text: str) -> str:
    """As many characters as `text`, each ASCII or a class stand-in."""
    if text.isascii():
        return text
    return _collapse_table()[codepoints(text)].tobytes().decode("latin-1")


def ascii_whitespace(text: str) -> str:
    """`text` with non-ASCII whitespace replaced by the vertical tab, so that ASCII \\s matches it."""
    if text.isascii():
        return text
    points = codepoints(text)
    wide = whitespace()[points] & (points > 0x7F)
    return np.where(wide, np.uint32(0x0B), points).astype("<u4").tobytes().decode("utf-32-le")


def lower(char: str) -> str:
    """Simple (one to one) lower case. Code points unassigned in 15.1 stay; newer Pythons know case for some of them."""
    if char == "\u0130":  # the only one whose full mapping has two characters
        return "i"
    return char if classes()[ord(char)] == UNASSIGNED else char.lower()


def base_character(char: str) -> str:
    """The first character of the canonical decomposition."""
    return char if classes()[ord(char)] == UNASSIGNED else unicodedata.normalize("NFD", char)[0]


def _byte_alphabet() -> str:
    """GPT-2's `bytes_to_unicode`: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards."""
    keep = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return "".join(chr(b if b in keep else next(rest)) for b in range(256))


BYTE_TO_CHAR = _byte_alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}
_TRANSLATION = dict(enumerate(BYTE_TO_CHAR))


def byte_encode(data: bytes) -> str:
    """Bytes as characters of the byte alphabet."""
    return data.decode("latin-1").translate(_TRANSLATION)


def byte_decode(text: str) -> bytes | None:
    """The bytes that byte-alphabet characters stand for; None if a character is not in the alphabet."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in text])
    except KeyError:
        return None
