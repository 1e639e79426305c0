"""The two ways a command fails on purpose. Anything else that escapes is a bug and shows its traceback."""


class UserError(ValueError):
    """Wrong usage or bad input: exit code 2. The message is one line that names the file and the tensor or row,
    what was expected and what was found, then what to do next."""

    exit_code = 2


class Unsupported(UserError):
    """A sound file that asks for something mlxtrain does not have: an architecture, a block type, a tokenizer."""


class RunError(RuntimeError):
    """A run that started and failed (a loss that is not finite, a full disk): exit code 1."""

    exit_code = 1
