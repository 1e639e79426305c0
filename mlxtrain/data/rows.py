"""Rows of a data file: JSON lines, or a plain text file as one document. Every fault is named by line."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxtrain.errors import UserError

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
# JSON can spell half of a surrogate pair (\\ud83d), which is no character and has no UTF-8.
_SURROGATE = re.compile("[\ud800-\udfff]")

ROLES = ("system", "user", "assistant", "tool", "developer")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: `kind` is messages, completion or text; `value` the parsed object. `line` counts from 1."""

    path: Path
    line: int
    kind: str
    value: dict[str, Any]

    def fault(self, message: str) -> UserError:
        return UserError(f"{self.path}:{self.line}: {message}")


def read_rows(path: str | Path) -> Iterator[Row | UserError]:
    """Each row of the file, or the UserError that says what is wrong with it. Blank lines are skipped.

    Raises UserError where the file itself cannot be read or is empty.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the path of a JSONL or text file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    data = data.removeprefix(b"\xef\xbb\xbf")  # the mark some editors begin a UTF-8 file with
    if not data.strip():
        raise UserError(f"{path}: is empty, expected at least one row")
    if path.suffix.lower() not in JSON_SUFFIXES:
        yield _text_file(path, data)
        return
    if data.lstrip()[:1] == b"[":
        raise UserError(
            f"{path}: holds one JSON array, expected one JSON object a line (JSONL); write each row on a line"
        )
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield _parse(path, number, line)
            except UserError as fault:
                yield fault


def _utf8(path: Path, line: int, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}:{line}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def _text_file(path: Path, data: bytes) -> Row | UserError:
    try:
        return Row(path=path, line=1, kind="text", value={"text": _utf8(path, 1, data)})
    except UserError:
        bad = next(n for n, line in enumerate(data.split(b"\n"), 1) if not _is_utf8(line))
        return UserError(f"{path}:{bad}: is not UTF-8; save the file as UTF-8")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _parse(path: Path, number: int, line: bytes) -> Row:
    try:
        value = json.loads(_utf8(path, number, line))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{number}: is not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists within lists within lists
        raise UserError(f"{path}:{number}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}:{number}: is a JSON {type(value).__name__}, expected an object")
    if "messages" in value:
        row = Row(path=path, line=number, kind="messages", value=value)
        _check_messages(row)
    elif "prompt" in value or "completion" in value:
        row = Row(path=path, line=number, kind="completion", value=value)
        for key in ("prompt", "completion"):
            _check_text(row, key)
    elif "text" in value:
        row = Row(path=path, line=number, kind="text", value=value)
        _check_text(row, "text")
    else:
        keys = ", ".join(sorted(map(str, value))) or "none"
        expected = "has no 'messages', 'prompt' and 'completion', or 'text'"
        raise UserError(f"{path}:{number}: {expected} (its keys: {keys}); rename the column")
    return row


def _check_text(row: Row, key: str) -> None:
    value = row.value.get(key)
    if not isinstance(value, str):
        found = "missing" if key not in row.value else f"of type {type(value).__name__}"
        raise row.fault(f"key {key!r} is {found}, expected a string")
    _check_surrogates(row, key, value)


def _check_surrogates(row: Row, key: str, text: str) -> None:
    if _SURROGATE.search(text):
        raise row.fault(f"{key!r} holds half of a surrogate pair, which is not valid Unicode; repair the text")


def _check_messages(row: Row) -> None:
    messages = row.value["messages"]
    if not isinstance(messages, list) or not messages:
        raise row.fault("'messages' is empty or not a list, expected at least one message")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict) or "role" not in message or "content" not in message:
            raise row.fault(f"{where} lacks 'role' or 'content'")
        if message["role"] not in ROLES:
            raise row.fault(f"{where} has role {message['role']!r}, expected one of {', '.join(ROLES)}")
        content = message["content"]
        if not isinstance(content, str):
            raise row.fault(f"{where}: 'content' is of type {type(content).__name__}, expected a string")
        _check_surrogates(row, where, content)
