"""Stand-in for SGLang's CUDA kernels: it can be imported, and each function of it raises when called.

On a CPU without AMX, SGLang computes every layer with PyTorch and only imports names from here. A kernel that
is called all the same must not return a wrong value silently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.4.10"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Return a function that raises NotImplementedError, for any public name."""
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU: this is the stand-in for CPUs")

    absent.__name__ = absent.__qualname__ = name
    return absent
