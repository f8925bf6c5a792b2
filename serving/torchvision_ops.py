"""Let torchvision be imported beside a PyTorch without CUDA. Run by the interpreter it is installed for.

The published torchvision is built for CUDA. Its library does not load here, and then its own import fails
since two operators are unknown. They are declared, without an implementation: serving text calls neither.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

MARK = "# declared by topas: "
DECLARATION = f"""
{MARK}the library above does not load without CUDA
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def declared(source: str) -> str:
    """Return the source of ``torchvision/extension.py`` with the declaration at its end, once."""
    return source.split(f"\n{MARK}", maxsplit=1)[0].rstrip("\n") + "\n" + DECLARATION


if __name__ == "__main__":
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise SystemExit("torchvision is not installed")
    path = Path(spec.origin).with_name("extension.py")
    path.write_text(declared(path.read_text()))
