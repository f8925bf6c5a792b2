"""``python -m topas.cli``."""

import sys

from topas.cli import main

sys.exit(main())
