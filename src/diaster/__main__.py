"""`python -m diaster` is `diaster`. Nothing that takes long is imported before Ctrl-C is provided for."""

import os
import sys


def main() -> int:
    """The entry point; returns the exit code."""
    try:
        from diaster.signals import leaving_at_once

        with leaving_at_once():
            from diaster.cli import main as command_line
    except KeyboardInterrupt:  # in the first milliseconds
        os.write(2, b"diaster: interrupted.\n")
        os._exit(130)
    return command_line(owns_process=True)


if __name__ == "__main__":
    sys.exit(main())
