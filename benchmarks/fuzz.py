"""Damage runs, checkpoints, recordings and sweeps in thousands of ways: each is read, or refused in a sentence.

    make fuzz
    python benchmarks/fuzz.py --case 1234      # one case alone, with what was damaged and how it was read

Each number is one damage and one way to read it, the same each time (tests/support/fuzz_cases.py). A few processes
read them. Exit code 1 if a case ends in anything but a sentence, takes more than 30 seconds or 2 GiB, ends its
process, or changes anything outside of what it may write to.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SUPPORT = REPOSITORY / "tests" / "support"
SECONDS = 30.0  # of a case
SECONDS_TO_START = 300.0
MOST_ADDRESSES = 6 * 2**30  # a process has beyond what it has at its start; more ends in a MemoryError
CASES_OF_A_PROCESS = 1000  # compiled programs are never given back
CASES = 5000


def environment(folder: Path) -> dict[str, str]:
    """Of the processes that read: a home of their own, and programs compiled quickly and kept between processes."""
    return {
        **os.environ,
        **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(SUPPORT)]),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
        "MPLCONFIGDIR": str(folder.parent / "cache"),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
        "PYTHONWARNINGS": "ignore",
    }


# The process that reads


def serve(sources: Path, root: Path) -> None:
    """Read the cases whose numbers come in, and answer with how each ended."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed is no answer
    from compiled_once import compile_once
    from fuzz_cases import Sandbox
    from fuzz_sources import find_sources
    from fuzz_watch import status, watch

    compile_once()
    whole = find_sources(sources)
    sandbox = Sandbox(root, whole.outside)
    os.chdir(root / "cwd")
    for number in range(-8, 0):  # what is imported and compiled on first use is so now
        watch(number, whole, sandbox)
    limit = status("VmSize") + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(watch(int(line), whole, sandbox)._asdict()), file=answers, flush=True)


# The process that watches


class Reader:
    """A process that reads cases, with a folder of its own."""

    def __init__(self, folder: Path, number: int) -> None:
        self.root = folder / f"reader-{number}"
        shutil.rmtree(self.root, ignore_errors=True)
        command = [sys.executable, __file__, "--serve", str(folder / "sources"), str(self.root)]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=environment(self.root)
        )
        assert self.process.stdout is not None
        self.out = self.process.stdout
        self.case: int | None = None
        self.since, self.limit, self.n_cases = time.monotonic(), SECONDS_TO_START, 0

    def give(self, case: int) -> None:
        assert self.process.stdin is not None
        self.case, self.since, self.limit = case, time.monotonic(), SECONDS
        self.n_cases += 1
        self.process.stdin.write(f"{case}\n".encode())
        self.process.stdin.flush()

    def answer(self) -> Any:
        """What it answers; None where it has ended."""
        line = self.out.readline()
        return json.loads(line) if line else None

    def end(self) -> str:
        """End it; returns the last it said."""
        self.process.kill()
        self.process.wait()
        self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, self.errors.tell() - 2000))
        return self.errors.read().decode(errors="replace")


class Watch:
    """Deals out cases to readers and gathers what came of them."""

    def __init__(self, folder: Path, cases: list[int], n_readers: int) -> None:
        self.folder, self.ahead, self.n_readers = folder, cases[::-1], n_readers
        self.outcomes: list[dict[str, Any]] = []
        self.selector = selectors.DefaultSelector()
        self.n_started = 0

    def run(self) -> list[dict[str, Any]]:
        for _ in range(min(self.n_readers, len(self.ahead))):
            self.start()
        while self.selector.get_map():
            for key, _ in self.selector.select(timeout=0.5):
                self.hear(key.data)
            for reader in [key.data for key in self.selector.get_map().values()]:
                if time.monotonic() - reader.since > reader.limit:
                    self.lose(reader, f"it takes more than {reader.limit:.0f} seconds")
        return self.outcomes

    def start(self) -> None:
        reader = Reader(self.folder, self.n_started)
        self.n_started += 1
        self.selector.register(reader.out, selectors.EVENT_READ, reader)

    def hear(self, reader: Reader) -> None:
        answer = reader.answer()
        if answer is None:
            return self.lose(reader, f"its process has ended with {reader.process.wait()}")
        if reader.case is not None:
            self.note(answer)
        if self.ahead and reader.n_cases < CASES_OF_A_PROCESS:
            return reader.give(self.ahead.pop())
        self.leave(reader)

    def lose(self, reader: Reader, why: str) -> None:
        said = reader.end()
        if reader.case is None:
            sys.exit(f"a process could not begin: {why}\n{said}")
        row = {"number": reader.case, "kind": "?", "what": "?", "outcome": "failed", "why": f"{why}\n{said}"}
        self.note({**row, "seconds": time.monotonic() - reader.since, "memory": 0})
        self.leave(reader)

    def leave(self, reader: Reader) -> None:
        self.selector.unregister(reader.out)
        reader.end()
        shutil.rmtree(reader.root, ignore_errors=True)
        if self.ahead:
            self.start()

    def note(self, row: dict[str, Any]) -> None:
        self.outcomes.append(row)
        if row["outcome"] == "failed":
            print(f"case {row['number']} ({row['what']}): {row['why']}", flush=True)
        if len(self.outcomes) % 250 == 0:
            print(f"{len(self.outcomes):,} cases", flush=True)


def summary(outcomes: list[dict[str, Any]], seconds: float) -> str:
    counts = Counter((row["kind"], row["outcome"]) for row in outcomes)
    kinds = sorted({row["kind"] for row in outcomes})
    lines = [f"{'':12}{'cases':>8}{'read':>8}{'refused':>8}{'failed':>8}"]
    for kind in kinds:
        ends = [counts[kind, outcome] for outcome in ("read", "refused", "failed")]
        lines.append(f"{kind:12}" + "".join(f"{number:>8,}" for number in (sum(ends), *ends)))
    slowest = max(outcomes, key=lambda row: row["seconds"])
    largest = max(outcomes, key=lambda row: row["memory"])
    return "\n".join(
        [
            *lines,
            f"slowest: case {slowest['number']}, {slowest['seconds']:.1f} seconds ({slowest['what']})",
            f"most memory: case {largest['number']}, {largest['memory'] / 2**20:.0f} MiB ({largest['what']})",
            f"{len(outcomes):,} cases in {seconds:.0f} seconds",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES, help="how many, from the first")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--readers", type=int, default=os.cpu_count() or 1, help="processes that read")
    parser.add_argument("--log", type=Path, help="file to write, with a line of JSON for each case")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        from fuzz_sources import make_sources

        make_sources(arguments.make)
        return 0
    if arguments.serve:
        serve(*arguments.serve)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="diaster-fuzz-"))
    try:
        cases = list(range(arguments.cases)) if arguments.case is None else [arguments.case]
        outcomes = fuzz(folder, cases, arguments.readers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.log:
        arguments.log.write_text("".join(json.dumps(row) + "\n" for row in outcomes), encoding="utf-8")
    if arguments.case is not None:
        print(f"{outcomes[0]['what']}: {outcomes[0]['outcome']} {outcomes[0]['why']}")
    return int(any(row["outcome"] == "failed" for row in outcomes))


def fuzz(folder: Path, cases: list[int], n_readers: int) -> list[dict[str, Any]]:
    """Make what is damaged, and read every case of it."""
    start = time.monotonic()
    make = [sys.executable, __file__, "--make", str(folder / "sources")]
    subprocess.run(make, env=environment(folder / "first"), check=True)
    print(f"what is damaged was made in {time.monotonic() - start:.0f} seconds", flush=True)
    outcomes = Watch(folder, cases, n_readers).run()
    print(summary(outcomes, time.monotonic() - start))
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
