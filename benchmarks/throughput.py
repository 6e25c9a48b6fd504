"""How fast the whole loop is: environment steps per second, compared with other libraries' plain SAC.

    make bench                                                      # 2 CPU cores: Hopper-v5, one seed, against SBX
    python benchmarks/throughput.py --peers sbx sb3                 # and against Stable-Baselines3
    python benchmarks/throughput.py --env HalfCheetah-v5            # episodes that all last 1000 steps
    python benchmarks/throughput.py --agent xqc --size small        # another learner
    python benchmarks/throughput.py --seeds 5 --steps 60000 --count-from 30000 --repeat 1      # a GPU, five seeds

Speed is taken after the first evaluation, over whole chunks, later evaluations included. All sides alternate and the
median of the repetitions counts, because machines are shared and noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIASTER = """
import json, sys, time
from pathlib import Path
spawned = float(sys.argv[5])
from diaster.config import build_config
from diaster.training.progress import Silent
from diaster.training.train import run_training

class Marks(Silent):
    def __init__(self): self.marks = []
    def advance(self, progress): self.marks.append((progress.step, time.perf_counter()))

env, steps, seeds, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
reporter = Marks()
imported = time.time() - spawned
every = {"evaluation": {"every": int(sys.argv[7])}} if sys.argv[7] else {}
config = build_config(
    env=env, steps=steps, seeds=seeds, envs=int(sys.argv[8]), warmup_steps=1000, agent=json.loads(sys.argv[9]), **every
)
run = run_training(config, out, reporter)
marks = [mark for mark in reporter.marks if mark[0] >= int(sys.argv[6])]
speed = seeds * (marks[-1][0] - marks[0][0]) / (marks[-1][1] - marks[0][1])
start_up = imported + run.metadata["seconds_to_first_learning"]
print(json.dumps({"speed": speed, "start_up": start_up, "device": run.metadata["device"]}))
"""

PEER = """
import json, sys, time
import gymnasium as gym
from LIBRARY import SAC
from stable_baselines3.common.callbacks import BaseCallback

class Marks(BaseCallback):
    marks = []
    def _on_step(self): return True
    def _on_rollout_start(self): self.marks.append((self.num_timesteps, time.perf_counter()))

env, steps = sys.argv[1], int(sys.argv[2])
model = SAC("MlpPolicy", gym.make(env), train_freq=100, gradient_steps=100, learning_starts=1000, seed=0)
model.learn(steps, callback=Marks())
marks = [mark for mark in Marks.marks if mark[0] >= int(sys.argv[3])]
print(json.dumps({"speed": (marks[-1][0] - marks[0][0]) / (marks[-1][1] - marks[0][1])}))
"""

PEERS = {"sbx": ("sbx", "SBX"), "sb3": ("stable_baselines3", "Stable-Baselines3")}  # module, name


def measure(script: str, *arguments: str, cache: Path | None = None) -> dict[str, float | str]:
    environment = {**os.environ, **({"XDG_CACHE_HOME": str(cache)} if cache else {})}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def is_installed(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Hopper-v5")
    parser.add_argument("--steps", type=int, default=12_000, help="environment steps per seed and repetition")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--envs", type=int, default=1, help="environments that each seed collects in")
    parser.add_argument("--agent", default="sac", help="of our side; peers run SAC")
    parser.add_argument("--size", choices=("full", "small"), help="of xqc")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=["sbx"], help="only with one seed")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--count-from",
        type=int,
        default=5200,
        help="the step from which speed is taken; the first evaluation is at 5000",
    )
    parser.add_argument("--evaluate-every", type=int, help="steps, instead of as often as by default; peers never do")
    arguments = parser.parse_args()
    if arguments.steps < arguments.count_from + 800:
        parser.error(f"--steps has to be at least {arguments.count_from + 800}: see --count-from")
    ours, starts = [], []
    device = "?"
    peers = [peer for peer in arguments.peers if arguments.seeds == 1 and is_installed(PEERS[peer][0])]
    theirs: dict[str, list[float]] = {peer: [] for peer in peers}
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        for repetition in range(arguments.repeat):
            out = Path(folder) / f"run{repetition}"
            result = measure(
                DIASTER,
                arguments.env,
                str(arguments.steps),
                str(arguments.seeds),
                str(out),
                str(time.time()),
                str(arguments.count_from),
                str(arguments.evaluate_every or ""),
                str(arguments.envs),
                json.dumps({"name": arguments.agent, **({"size": arguments.size} if arguments.size else {})}),
                cache=cache,
            )
            shutil.rmtree(out)
            ours.append(float(result["speed"]))
            starts.append(float(result["start_up"]))
            device = str(result["device"])
            for peer in peers:
                script = PEER.replace("LIBRARY", PEERS[peer][0])
                result = measure(script, arguments.env, str(arguments.steps), str(arguments.count_from))
                theirs[peer].append(float(result["speed"]))
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "diaster", "--help"], capture_output=True, check=True)
    help_seconds = time.perf_counter() - start

    rows = [
        ("machine", f"{device}, {os.cpu_count()} cores"),
        (
            f"diaster + {arguments.agent}, {arguments.env}, {arguments.seeds} seed(s), {arguments.envs} env(s) each",
            f"{statistics.median(ours):,.0f} steps/s",
        ),
    ]
    for peer, speeds in theirs.items():
        ratio = statistics.median(ours) / statistics.median(speeds)
        rows += [
            (f"{PEERS[peer][1]}'s plain SAC on dense rewards", f"{statistics.median(speeds):,.0f} steps/s"),
            ("ratio", f"{ratio:.2f}"),
        ]
    rows.append(("start-up to the first learning step, cold cache", f"{starts[0]:.1f} s"))
    if len(starts) > 1:
        rows.append(("start-up to the first learning step, warm cache", f"{min(starts[1:]):.1f} s"))
    rows.append(("diaster --help", f"{help_seconds:.2f} s"))
    for name, value in rows:
        print(f"| {name:<55} | {value:>20} |")


if __name__ == "__main__":
    main()
