"""``python -m compare.evaluation``."""

from __future__ import annotations

import sys

from compare.evaluation.command import main

if __name__ == "__main__":
    sys.exit(main())
