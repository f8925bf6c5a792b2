"""Install SGLang for a CPU-only machine, the tiny model and TOPAS into one virtual environment.

Run as ``python3 serving/install.py FOLDER`` (``make serving`` does, for ``.serving``). Needs only Python's
standard library. A folder whose installation was completed is brought up to date, any other made anew: the
file ``.ready`` in it is removed first and written last.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
MINIMUM_GLIBC = (2, 34)  # SGLang's own compiled part
MINIMUM_PYTHON = (3, 11)


def refusal(
    system: str, machine: str, libc: tuple[str, str], python: tuple[int, int], *, venv: bool = True
) -> str | None:
    """Return why SGLang cannot be installed on such a machine, or None."""
    if system != "Linux" or machine not in {"x86_64", "AMD64"}:
        return f"SGLang's wheels for CPUs are for Linux on x86_64; this is {system} on {machine}"
    name, version = libc
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < MINIMUM_GLIBC:
        found = f"glibc {version}" if name == "glibc" else "another C library"
        return f"SGLang needs glibc {_dotted(MINIMUM_GLIBC)} or later; this machine has {found}"
    if python < MINIMUM_PYTHON:
        return f"Python {_dotted(MINIMUM_PYTHON)} or later is needed; this is {_dotted(python)}"
    if not venv:
        return "Python's module ensurepip is missing: install your system's package for virtual environments"
    return None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def install(folder: Path) -> None:
    """Carry out all steps.

    Raises
    ------
    subprocess.CalledProcessError
        if a step fails; what it said is on standard error, and the folder does not count as installed.
    """
    ready = folder / ".ready"
    again = ready.exists()
    ready.unlink(missing_ok=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq", "install"]
    if not again:
        _step("virtual environment", [sys.executable, "-m", "venv", "--clear", str(folder)])
        (folder / ".gitignore").write_text("*\n")
    _step("PyTorch and libraries", [*pip, "-r", str(HERE / "requirements.txt")])
    _step("SGLang", [*pip, "--no-deps", "-r", str(HERE / "requirements-alone.txt")])
    _step("torchvision's operators", [str(python), str(HERE / "torchvision_ops.py")])
    with tempfile.TemporaryDirectory() as scratch:  # a build writes beside the source
        shim = shutil.copytree(
            HERE / "shim", Path(scratch, "shim"), ignore=shutil.ignore_patterns("__pycache__")
        )
        _step(
            "stand-in for the kernels",
            [*pip, "--no-build-isolation", "--no-deps", "--force-reinstall", str(shim)],
        )
    _step("TOPAS", [*pip, "--no-build-isolation", "--editable", f"{HERE.parent}[serving]"])
    _step("tiny model", [str(python), str(HERE / "tiny_model.py"), str(folder / "tiny-qwen2")])
    # Whatever is wrong with the versions shows here, not in the log of a server.
    _step(
        "import of SGLang",
        [str(python), "-W", "ignore", "-c", "import sglang.srt.server_args, topas, sgl_kernel"],
    )
    ready.touch()


def _step(name: str, command: list[str]) -> None:
    print(f"serving: {name} ...", end=" ", flush=True)
    began = time.monotonic()
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=HERE.parent, env=environment)
    print(f"{time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    """Install, or say in one line why not."""
    if len(sys.argv) != 2:  # noqa: PLR2004 # itself and the folder
        print("usage: install.py FOLDER", file=sys.stderr)
        return 2
    try:
        import ensurepip  # noqa: F401, PLC0415 # some systems package it apart
    except ImportError:
        venv = False
    else:
        venv = True
    reason = refusal(
        platform.system(), platform.machine(), platform.libc_ver(), sys.version_info[:2], venv=venv
    )
    if reason:
        print(f"serving: cannot be installed here: {reason}", file=sys.stderr)
        return 1
    try:
        install(Path(sys.argv[1]).absolute())
    except subprocess.CalledProcessError as error:
        print(
            f"\nserving: this step failed (exit code {error.returncode}): {' '.join(error.cmd)}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
