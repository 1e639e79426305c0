"""The vocabulary in a GGUF's metadata: token texts, attributes, special ids and flags, with llama.cpp's rules.

Much of what a tokenizer does is not in the file but in llama.cpp's code: defaults by tokenizer model, tokens that are
known by their text (end of turn, fill in the middle), attributes set by the model's name. All of those are here; the
source of each is `llama_vocab::impl::load` in llama.cpp's src/llama-vocab.cpp.
"""

from collections.abc import Mapping
from typing import Any

from mlxtrain.errors import UserError

# Attribute bits.
UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE, LSTRIP, RSTRIP = (1 << i for i in range(8))

# tokenizer.ggml.token_type values, from the GGUF specification.
_ATTRIBUTE_OF_TYPE = {1: NORMAL, 2: UNKNOWN, 3: CONTROL, 4: USER_DEFINED, 5: UNUSED, 6: BYTE}

# Special ids before the file's keys are read, by tokenizer model.
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "gemma4": {},
}

_ID_KEYS = [
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("fim_pre", "fim_pre_token_id"),
    ("fim_suf", "fim_suf_token_id"),
    ("fim_mid", "fim_mid_token_id"),
    ("fim_pad", "fim_pad_token_id"),
    ("fim_rep", "fim_rep_token_id"),
    ("fim_sep", "fim_sep_token_id"),
    ("fim_pre", "prefix_token_id"),
    ("fim_suf", "suffix_token_id"),
    ("fim_mid", "middle_token_id"),
]

# Where the file names no such id, a token with one of these texts is it, and becomes a control token.
_ID_TEXTS = {
    "eom": ["<|eom_id|>"],
    "fim_pre": [
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<\uff5cfim▁begin\uff5c>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    "fim_suf": [
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<\uff5cfim▁hole\uff5c>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    "fim_mid": [
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<\uff5cfim▁end\uff5c>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
    "fim_pad": ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    "fim_rep": ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    "fim_sep": ["<|file_sep|>"],
}

# Tokens that end a generation, by text; they become control tokens.
_END_TEXTS = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\uff5cend▁of▁sentence\uff5c>",
    "[e~[",
]

_HARMONY_TEXTS = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"]


class Vocab:
    """Token texts, attributes and special ids of one GGUF.

    Raises `UserError` where arrays are missing or of the wrong length, or where llama.cpp itself would refuse the file.
    """

    def __init__(self, metadata: Mapping[str, Any], source: str):
        self.source = source
        self.model = str(metadata.get("tokenizer.ggml.model", ""))
        self.pre = "gemma4" if self.model == "gemma4" else str(metadata.get("tokenizer.ggml.pre", ""))
        self._metadata = metadata
        self.tokens = self._texts()
        self.ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(self.ids) != len(self.tokens):
            text = next(t for i, t in enumerate(self.tokens) if self.ids[t] != i)
            raise self.error(
                f"tokenizer.ggml.tokens: {text!r} appears twice; expected distinct tokens, convert the model again"
            )
        self.attributes = self._attributes()
        self.scores = self._array("tokenizer.ggml.scores")
        self.special = self._special_ids()
        self.eog_ids = frozenset(self._mark_known_texts())
        self._name_rules()

    def error(self, message: str) -> UserError:
        return UserError(f"{self.source}: {message}")

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._metadata.get(f"tokenizer.ggml.{name}", default))

    def special_tokens(self) -> list[int]:
        """Ids split off before anything else, longest text (in bytes) first.

        Equals stay in the order of ids. llama.cpp leaves theirs to its C++ library; it shows only where the end of one
        is the beginning of another of the same length, which no published vocabulary has.
        """
        wanted = CONTROL | USER_DEFINED | UNKNOWN
        ids = [i for i, attribute in enumerate(self.attributes) if attribute & wanted]
        for i in ids:
            if not _is_utf8(self.tokens[i]):
                raise self.error(f"special token {i} is not valid UTF-8; expected text, convert the model again")
        return sorted(ids, key=lambda i: -len(self.tokens[i].encode()))

    def _texts(self) -> list[str]:
        tokens = self._metadata.get("tokenizer.ggml.tokens")
        if tokens is None or not len(tokens):
            raise self.error("no tokenizer.ggml.tokens in the metadata; expected a vocabulary, use a complete GGUF")
        tokens = list(tokens)
        if not all(tokens):
            tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(tokens)]
        return tokens

    def _array(self, key: str) -> list | None:
        values = self._metadata.get(key)
        if values is None:
            return None
        values = values.tolist() if hasattr(values, "tolist") else list(values)
        if len(values) < len(self.tokens):
            raise self.error(f"{key} has {len(values)} entries; expected {len(self.tokens)}, one per token")
        return values

    def _attributes(self) -> list[int]:
        types = self._array("tokenizer.ggml.token_type")
        if types is None:
            return [NORMAL] * len(self.tokens)
        return [_ATTRIBUTE_OF_TYPE.get(kind, 0) for kind in types[: len(self.tokens)]]

    def _special_ids(self) -> dict[str, int]:
        ids = dict(_DEFAULT_IDS[self.model])
        if self.model == "gpt2" and self.pre in ("chatglm-bpe", "glm4", "glm5"):
            del ids["bos"]
        size = len(self.tokens)
        ids = {name: i for name, i in ids.items() if i < size}
        for name, key in _ID_KEYS:
            value = self._metadata.get(f"tokenizer.ggml.{key}")
            if value is not None and 0 <= int(value) < size:  # llama.cpp ignores an id outside the vocabulary
                ids[name] = int(value)
        return ids

    def _mark_known_texts(self) -> set[int]:
        attributes, ids, special = self.attributes, self.ids, self.special
        for name, texts in _ID_TEXTS.items():
            # Of several candidates llama.cpp takes whichever its hash table yields first; here the lowest id.
            found = sorted(ids[text] for text in texts if text in ids)
            if found and name not in special:
                special[name] = found[0]
                attributes[found[0]] |= CONTROL
        end = {special[name] for name in ("fim_pad", "fim_rep", "fim_sep") if name in special}
        for text in _END_TEXTS:
            if text in ids:
                end.add(ids[text])
                attributes[ids[text]] |= CONTROL
        for text in _HARMONY_TEXTS:
            if text in ids:
                attributes[ids[text]] = USER_DEFINED
        end |= {special[name] for name in ("eos", "eot", "eom") if name in special}
        self._withdraw_ends(end)
        return end

    def _withdraw_ends(self, end: set[int]) -> None:
        """Tokens that look like an end and are none: `<|end|>` in harmony and Solar, `</s>` in Gemma 4."""
        texts = {self.tokens[i]: i for i in end}
        call = "<|call|>" in texts or "<|calls|>" in texts
        if call and ("<|return|>" in texts or "<|flush|>" in texts) and "<|end|>" in texts:
            end.discard(texts["<|end|>"])
            self.attributes[texts["<|end|>"]] = USER_DEFINED
        if ("<|tool_response>" in texts or "<|plamo:eos|>" in texts) and "</s>" in texts:
            end.discard(texts["</s>"])
            self.attributes[texts["</s>"]] = NORMAL

    def _name_rules(self) -> None:
        """Attributes that llama.cpp sets by the model's, pre-tokenizer's or architecture's name."""
        name = str(self._metadata.get("general.name", "")).lower()
        architecture = str(self._metadata.get("general.architecture", ""))
        jina = any(part in self.pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code"))
        if jina or "nomic-bert-moe" in architecture or "jina-bert-v3" in architecture:
            self._strip_left("<mask>")
        elif "phi-3" in name or "phi3" in name:
            for i in self.special_tokens():
                self.attributes[i] |= RSTRIP
            for text in ("</s>", "<unk>", "<s>", "<|endoftext|>"):
                if text not in self.ids:
                    raise self.error(
                        f"general.name says phi-3, but token {text!r} is missing; llama.cpp refuses such a file"
                    )
            self.attributes[self.ids["</s>"]] |= RSTRIP
            for text in ("<unk>", "<s>", "<|endoftext|>"):
                self.attributes[self.ids[text]] &= ~RSTRIP
        elif "modern-bert" in name:
            self._strip_left("[MASK]")

    def _strip_left(self, text: str) -> None:
        if text in self.ids:
            self.attributes[self.ids[text]] |= LSTRIP


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
