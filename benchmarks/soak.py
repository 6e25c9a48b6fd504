"""Kill runs at random moments, resume them, and compare every byte with a run that was never interrupted.

    make soak                                  # every method, every agent; at most ten minutes
    python benchmarks/soak.py --kills 5 --only rrd

Each case trains once, uninterrupted. Then it is started again, killed with `kill -9` after a random time or, every
other time, in the middle of writing a checkpoint, and resumed, until it has been killed often enough and may end. Exit
code 1 if a single byte of progress.csv, policy.safetensors or decomposer.safetensors differs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TINY = [
    "--steps=4000", "--chunk-steps=70", "--warmup-steps=300", "--checkpoint-every=70", "--workers=0",
    "--agent.hidden=16", "--agent.batch-size=16", "--agent.every=4",
    "--evaluation.every=500", "--evaluation.episodes=2",
]  # fmt: skip
NET = "--method.hidden=16"
CASES: dict[str, list[str]] = {
    "diaster, sac": ["InvertedPendulum-v5", "--agent=sac", "--seeds=2", NET],
    "differences, td3": ["Swimmer-v5", "--horizon=100", "--agent=td3", "--method.reward-source=difference", NET],
    "rrd, ddpg": ["Hopper-v5", "--method=rrd", "--agent=ddpg", "--method.every=4", NET],
    "rd, dqn": ["CartPole-v1", "--method=rd", "--agent=dqn", NET],
    "rudder, sac": ["CartPole-v1", "--method=rudder", "--agent=sac", "--method.relabel-every=20", NET],
    "ircr, sac": ["Hopper-v5", "--method=ircr", "--agent=sac", "--replay.capacity=3000"],
    "uniform, dqn": ["Acrobot-v1", "--method=uniform", "--agent=dqn"],
    "uniform, xqc": ["Hopper-v5", "--method=uniform", "--agent=xqc", "--agent.layers=1", "--agent.actor-hidden=16"],
    "episodic, td3": ["InvertedPendulum-v5", "--method=episodic", "--agent=td3"],
    "dense, sac": ["Ant-v5", "--method=dense", "--agent=sac", "--horizon=60"],
}  # fmt: skip
RESULTS = ("progress.csv", "policy.safetensors", "decomposer.safetensors")


def diaster(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "diaster", *arguments], stderr=subprocess.PIPE)


def how_to_go_on(run: Path, arguments: list[str]) -> list[str]:
    """What to give to diaster next: the run resumed, or begun where it has not been yet."""
    if (run / "config.toml").exists():
        return ["resume", str(run)]
    shutil.rmtree(run, ignore_errors=True)  # killed between making the directory and writing to it
    return [*arguments, "--out", str(run)]


def same_results(one: Path, other: Path) -> bool:
    return all((one / result).read_bytes() == (other / result).read_bytes() for result in RESULTS)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, err = process.communicate()
    if process.returncode:
        sys.exit(f"exit code {process.returncode}: {err.decode()}")


def is_moment(run: Path, deadline: float, while_writing: bool) -> bool:
    """Whether to kill now: after the deadline, and on demand when a file of a checkpoint is half written then."""
    late = time.monotonic() - deadline
    return late > 0.0 and (not while_writing or late > 20.0 or any(run.glob("checkpoint/.*")))


def kill(process: subprocess.Popen[bytes], run: Path, seconds: float, while_writing: bool) -> bool:
    """Kill it after some seconds, or when a file of a checkpoint is half written then. False: it ended before."""
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        if is_moment(run, deadline, while_writing):
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return True
        time.sleep(0.0005)
    finish(process)
    return False


def soak(name: str, flags: list[str], kills: int, folder: Path, chance: random.Random) -> bool:
    """Whether runs that were killed end with the bytes of one that was not."""
    whole, half = folder / "whole", folder / "half"
    arguments = ["train", *flags, *TINY]
    finish(diaster(*arguments, "--out", str(whole), "--quiet"))
    done = in_writing = 0
    same = True
    while done < kills:  # a run that ended too soon is begun again
        shutil.rmtree(half, ignore_errors=True)
        while not (half / "DONE").exists():
            process = diaster(*how_to_go_on(half, arguments), "--quiet")
            while_writing = done % 2 == 1
            if done == kills:
                finish(process)
            elif kill(process, half, chance.uniform(1.0, 8.0), while_writing):
                done, in_writing = done + 1, in_writing + while_writing
        same &= same_results(whole, half)
    print(f"| {name:<24} | {done:>5} | {in_writing:>13} | {'the same' if same else 'DIFFERENT':<9} |", flush=True)
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3, help="per case")
    parser.add_argument("--minutes", type=float, default=10.0, help="no case is begun after nine tenths of it")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", help="cases whose name holds this")
    arguments = parser.parse_args()
    start, chance, good = time.monotonic(), random.Random(arguments.seed), True
    print("| method, agent            | kills | while writing | bytes     |\n|---|---|---|---|", flush=True)
    for name, flags in CASES.items():
        if arguments.only and arguments.only not in name:
            continue
        if time.monotonic() - start > 54.0 * arguments.minutes:
            print(f"| {name:<24} | left out: the time is over |")
            continue
        with tempfile.TemporaryDirectory() as folder:
            good &= soak(name, flags, arguments.kills, Path(folder), chance)
    print(f"{time.monotonic() - start:.0f} seconds")
    sys.exit(not good)


if __name__ == "__main__":
    main()
