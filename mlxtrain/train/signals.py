"""Stopping when asked: the first signal lets the step finish and everything be saved, a second leaves at once."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """`signal` is the number of the signal that asked for a stop, or None."""

    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell has it; 0 where none came."""
        return 0 if self.signal is None else 128 + self.signal


@contextlib.contextmanager
def stop_on_signals(say: Callable[[str], None]) -> Iterator[StopRequest]:
    """While inside, signals that ask for an end are noted in the request given, and answered by a line."""
    request = StopRequest()

    def note(number: int, _: FrameType | None) -> None:
        request.signal = number
        say("stopping after this step; once more to leave at once")
        for each in heard:
            signal.signal(each, signal.SIG_DFL)

    # A signal that is ignored already stays so: that is how nohup keeps a run alive.
    heard = [each for each in STOPPING if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, note) for each in heard}
    try:
        yield request
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
