"""events.jsonl: one JSON object a line, appended and flushed as it happens. The schema is in docs/events.md."""

import json
import math
from pathlib import Path
from time import time
from typing import Any


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: those become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


class EventLog:
    """Appends events to a file; every event carries its name and the time in seconds since 1970."""

    def __init__(self, path: Path):
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: str, **values: Any) -> None:
        record = {"event": event, **{k: _plain(v) for k, v in values.items()}, "time": round(time(), 3)}
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
