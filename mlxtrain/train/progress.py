"""What a person sees while a run goes on: a bar on a terminal, a line now and then in a log file."""

import sys

from tqdm import tqdm

_LINES = 20  # lines a whole run prints where the output is no terminal


class Progress:
    """Writes to standard error, so that standard output stays free for results."""

    def __init__(self, steps: int, done: int = 0):
        self.steps = steps
        self._terminal = sys.stderr.isatty()
        form = "{desc} {n}/{total} |{bar:24}| {postfix} [{elapsed}<{remaining}]"
        self._bar = (
            tqdm(total=steps, initial=done, desc="step", bar_format=form, leave=True) if self._terminal else None
        )

    def step(self, step: int, loss: float, tokens_per_s: float, peak_memory: int) -> None:
        text = f"loss {loss:.4f}, {tokens_per_s:,.0f} tokens/s, peak {peak_memory / 1e9:.2f} GB"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        elif step == 1 or step == self.steps or step % max(1, self.steps // _LINES) == 0:
            self.note(f"step {step}/{self.steps}: {text}")

    def note(self, text: str) -> None:
        """A line above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
