"""MXFP4: blocks of 32 numbers in four bits (e2m1), with one power of two as their scale.

Twice the numbers are integers."""

import numpy as np
from numpy.typing import NDArray

from baton_kernels import MatrixForm

BLOCK = 32
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)  # by the lower three bits of a nibble; the fourth is the sign
MXFP4 = MatrixForm("int4-groups", group=BLOCK, scales="bf16", table=(*_DOUBLED, *(-each for each in _DOUBLED)))


def halved_powers(exponents: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """2^(exponent - 128) in bf16, for numbers that are twice as large; exact for every exponent, also below the least
    normal number."""
    wide = exponents.astype(np.uint16)
    return np.where(wide < 2, np.uint16(0x20) << wide, np.maximum(wide, 1) - 1 << 7).astype(np.uint16)
