"""How compiled functions are declared that only compiled functions call."""

from __future__ import annotations

from functools import partial

import numba

inner = partial(numba.njit, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without what Python needs to call them, which for arguments of many arrays is most of the compilation."""
