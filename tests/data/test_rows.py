"""Data files: each fault is one line that names file and row."""

import json

import pytest

from mlxtrain.data.rows import read_rows
from mlxtrain.errors import UserError

GOOD = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}


def write(path, *rows):
    path.write_bytes(b"\n".join(r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows) + b"\n")
    return path


def test_each_kind_of_row(tmp_path):
    rows = [GOOD, {"prompt": "a", "completion": "b"}, {"text": "c"}]
    path = write(tmp_path / "d.jsonl", rows[0], b"", rows[1], b"  ", rows[2])
    assert [(r.kind, r.line) for r in read_rows(path)] == [("messages", 1), ("completion", 3), ("text", 5)]
    (tmp_path / "d.txt").write_text("all of\nthis")
    assert [r.value for r in read_rows(tmp_path / "d.txt")] == [{"text": "all of\nthis"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "JSON list"),
        (b"3", "JSON int"),
        (b'{"text": ' + b"[" * 100_000, "cannot be read as JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "\\ud83d"}', "surrogate"),
        ({"txt": "x"}, "has no 'messages'"),
        ({}, "its keys: none"),
        ({"text": 3}, "is of type int, expected a string"),
        ({"prompt": "x"}, "'completion' is missing"),
        ({"messages": []}, "'messages' is empty"),
        ({"messages": "hi"}, "not a list"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] lacks"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "role 'bot'"),
        ({"messages": [{"role": "user", "content": None}]}, "is of type NoneType"),
        (b'{"messages": [{"role": "user", "content": "\\udc00"}]}', "surrogate"),
    ],
)
def test_bad_rows_are_named_by_line_and_the_rest_is_read(tmp_path, row, message):
    path = write(tmp_path / "d.jsonl", GOOD, row, GOOD)
    found = list(read_rows(path))
    assert [isinstance(r, UserError) for r in found] == [False, True, False]
    assert str(found[1]).startswith(f"{path}:2: ") and "\n" not in str(found[1])
    with pytest.raises(UserError, match=message):
        raise found[1]


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b" \n\n", "is empty"), (b'[{"text": 1}]', "one JSON array")]
)
def test_files_without_rows(tmp_path, content, message):
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_rows(tmp_path / "d.jsonl"))


def test_missing_files_and_text_that_is_not_utf8(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        list(read_rows(tmp_path / "none.jsonl"))
    (tmp_path / "d.txt").write_bytes(b"one\ntwo\xff\n")
    (fault,) = read_rows(tmp_path / "d.txt")
    assert str(fault).startswith(f"{tmp_path / 'd.txt'}:2: ")


def test_a_byte_order_mark_is_passed_over(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"text": "a"}\r\n{"text": "b"}\r\n')
    assert [r.value["text"] for r in read_rows(tmp_path / "d.jsonl")] == ["a", "b"]
