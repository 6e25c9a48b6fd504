"""The command line: what a person types, and what is printed. Bad input is one sentence and exit code 2.

Each command imports what it needs when it runs, so that help comes at once.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, TextIO

import diaster
from diaster.cli.data_sets import fit, relabel
from diaster.cli.figures import figure, plot, report
from diaster.cli.listing import list_
from diaster.cli.runs import evaluate, record, video
from diaster.cli.sweeps import sweep
from diaster.cli.training import bench, demo, resume, train
from diaster.errors import DiasterError, Stopped, complain, refusing_shortage, traceback_of, unknown
from diaster.signals import INTERRUPTED, INTERRUPTION, owning_the_process

USAGE_ERROR = 2
DEBUG = "--debug"  # with any command


class Command(NamedTuple):
    """What a command does with the arguments that follow its name, and one line of help."""

    run: Callable[[Sequence[str]], None]
    help: str


COMMANDS: dict[str, Command] = {
    "train": Command(train, "train a policy from one number per episode"),
    "resume": Command(resume, "go on with a run that was cut off"),
    "sweep": Command(sweep, "train every cell of a grid, here or on a Ray cluster"),
    "evaluate": Command(evaluate, "evaluate the policies of a run on fresh episodes"),
    "plot": Command(plot, "draw learning curves"),
    "record": Command(record, "record episodes of a run, for figures that show single steps"),
    "figure": Command(figure, "draw a figure of a folder of runs"),
    "report": Command(report, "one page with tables, curves and figures of a folder of runs"),
    "video": Command(video, "film the policy of a run"),
    "fit": Command(fit, "fit rewards of single steps to a data set of episodes and returns"),
    "relabel": Command(relabel, "write a data set with the rewards of a model that was fitted"),
    "list": Command(list_, "methods, agents, presets, tasks, environments"),
    "bench": Command(bench, "how fast this machine learns, in two minutes"),
    "demo": Command(demo, "two to four minutes on InvertedPendulum-v5"),
}


def help_text() -> str:
    """The overview of all commands."""
    lines = [f"  {name:<10} {command.help}" for name, command in COMMANDS.items()]
    return (
        "usage: diaster COMMAND [options]\n\n"
        "Reinforcement learning from one number per episode.\n\n"
        + "\n".join(lines)
        + "\n\n'diaster COMMAND --help' explains a command and all of its settings; --debug with any command shows the "
        "\ntraceback of an error beside its sentence."
    )


def main(argv: Sequence[str] | None = None, owns_process: bool = False) -> int:
    """Run a command and return the exit code; where it owns the process, a second Ctrl-C ends that at once."""
    argv = list(sys.argv[1:] if argv is None else argv)
    is_debugged = DEBUG in argv
    argv = [item for item in argv if item != DEBUG]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a sign that the terminal does not have is no reason to stop
    try:
        if os.name != "posix":
            raise DiasterError("diaster runs on Linux and macOS; on Windows, run it in WSL.")
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(help_text(), flush=True)
        elif argv[0] == "--version":
            print(f"diaster {diaster.__version__}")
        elif argv[0] not in COMMANDS:
            raise unknown("command", argv[0], COMMANDS)
        else:
            with refusing_shortage(), owning_the_process() if owns_process else contextlib.nullcontext():
                COMMANDS[argv[0]].run(argv[1:])
        sys.stdout.flush()
    except DiasterError as error:
        if is_debugged:
            complain(traceback_of(error))
        complain(f"diaster: {error}")
        return USAGE_ERROR
    except Stopped as stop:
        complain(f"diaster: {stop}")
        return 128 + stop.signal
    except KeyboardInterrupt:
        complain(INTERRUPTION)
        if owns_process:
            _give_up_if_broken(sys.stdout)
            os._exit(INTERRUPTED)  # Python would first wait for what XLA compiles or computes, and may crash over it
        return INTERRUPTED
    except BrokenPipeError:  # the program that reads our output (head, say) has ended
        pass
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            complain(f"diaster: a name is too long for the file system: '{str(error.filename)[:60]}…'; choose another.")
            return USAGE_ERROR
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        complain(f"diaster: the output could not be written: {error.strerror}.")
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            _give_up_if_broken(stream)
    return 0


def _give_up_if_broken(stream: TextIO | None) -> None:
    """What a stream cannot write goes nowhere: Python would try once more when it ends, and change the exit code."""
    if stream is None:  # it was closed before we began
        return
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except ValueError:
        pass  # it is closed
