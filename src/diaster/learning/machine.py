"""The machine a run trains on: its device, its memory, its compilation cache, and how a record describes it."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from threadpoolctl import threadpool_limits

from diaster.config import RunConfig
from diaster.errors import DiasterError
from diaster.replay.store import store_bytes
from diaster.types import EnvSpec

SURROUNDINGS = ("XLA_FLAGS", "jax_threefry_partitionable")  # settings of JAX that change bytes, by their own names


def find_devices(wanted: str, number: int | str) -> list[jax.Device]:
    """The devices to learn on, of one kind."""
    if getattr(jax.config, "jax_enable_x64", False):
        raise DiasterError("JAX_ENABLE_X64 is set, and diaster computes in 32 bits; unset it.")
    try:
        devices = _devices_of(wanted)
    except (RuntimeError, AssertionError) as error:  # JAX's, of a platform that was named and is not there
        named = os.environ.get("JAX_PLATFORMS", "")
        raise DiasterError(
            f"JAX cannot use JAX_PLATFORMS={named} on this machine ({one_sentence(error)}); unset it, or name another."
        ) from None
    if number == "all":
        return devices
    assert isinstance(number, int)
    if number > len(devices):
        raise DiasterError(
            f"{number} devices were asked for and JAX finds {len(devices)} of the kind {devices[0].platform}; "
            "use --devices all to take what there is."
        )
    return devices[:number]


def one_sentence(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")[:200]


def _devices_of(wanted: str) -> list[jax.Device]:
    if wanted == "cpu":
        return list(jax.local_devices(backend="cpu"))
    try:
        return list(jax.local_devices(backend="gpu"))
    except RuntimeError:
        if wanted == "gpu":
            raise DiasterError(
                "a GPU was asked for and JAX finds none; install the GPU version with pip install 'diaster[cuda]', "
                "or use --device cpu."
            ) from None
    return list(jax.local_devices())


def check_memory(config: RunConfig, spec: EnvSpec, capacity: int, devices: Sequence[jax.Device]) -> None:
    """Refuse a replay that cannot fit, before it is tried."""
    device = devices[0]
    # Devices that are cores share the host's memory; others have their own, and some of the seeds are on each.
    n_seeds = len(config.seeds) if device.platform == "cpu" else -(-len(config.seeds) // len(devices))
    needed = n_seeds * store_bytes(capacity, spec.obs_dim, spec.action_dim, config.feedback, spec.obs_dtype)
    available = device_memory(device)
    if available is not None and needed > 0.9 * available:
        raise DiasterError(
            f"the replay needs {needed / 1e9:.1f} GB ({n_seeds} × {capacity} observations of "
            f"{spec.obs_dim} numbers) and {available / 1e9:.1f} GB are free on the {device.platform}; "
            "use fewer seeds or a smaller --replay.capacity."
        )


def device_memory(device: jax.Device) -> int | None:
    """Free bytes, where the platform tells."""
    if device.platform != "cpu":
        statistics = device.memory_stats() or {}
        limit = statistics.get("bytes_limit")
        return None if limit is None else int(limit - statistics.get("bytes_in_use", 0))
    return host_memory()


def host_memory() -> int | None:
    """Free bytes of the host, where the platform tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def peak_memory(device: jax.Device) -> int | None:
    """The most bytes this process has had on a device, where the platform tells."""
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use") if device.platform != "cpu" else None
    return None if peak is None else int(peak)


def use_compilation_cache() -> None:
    """Keep compiled programs between runs, unless the user has arranged that already."""
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        for name, value in (
            ("jax_compilation_cache_dir", str(Path(home) / "diaster" / "jax")),
            # A GPU's kernels are chosen by timing: a program that is compiled again may round otherwise. Keep them all.
            ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ):
            jax.config.update(name, value)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """One thread for factorisations, of the linear base and of potentials: on a CPU JAX takes them from SciPy's BLAS.

    Its threads wait for each other by spinning. Where collecting processes keep the cores busy as well, a factorisation
    of a millisecond can take hundreds.
    """
    import scipy.linalg  # noqa: F401 - only what is loaded can be limited

    with threadpool_limits(limits=1, user_api="blas"):
        yield


def describe_machine(device: jax.Device) -> dict[str, Any]:
    """What a reader of the run has to know to repeat it."""
    packages = ("diaster", "jax", "jaxlib", "numpy", "optax", "gymnasium", "mujoco")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": sys.argv,
        "commit": git_commit(),
        "versions": {"python": platform.python_version(), **versions},
        "device": device.device_kind,
        "platform": device.platform,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "XLA_FLAGS": " ".join(os.environ.get("XLA_FLAGS", "").split()) or "none",
        "jax_threefry_partitionable": bool(getattr(jax.config, "jax_threefry_partitionable", True)),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Where two records differ in what a run's bytes depend on apart from its settings. `before` may be any JSON."""

    def facts(record: Mapping[str, Any]) -> dict[str, Any]:
        versions = record.get("versions")
        own = {name: record[name] for name in ("platform", "device", "cores", *SURROUNDINGS) if name in record}
        return {**own, **(versions if isinstance(versions, Mapping) else {})}

    present = facts(now)
    return [
        f"{name} {value} (now {present.get(name, 'none')})"
        for name, value in facts(before).items()
        if value != present.get(name)
    ]


def git_commit() -> str | None:
    """The commit of the checkout this package runs from, where there is one."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
