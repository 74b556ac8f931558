"""Eight-bit floats (e4m3) as bytes, converted by integer and half-precision arithmetic alone: Ampere has no
instruction for them, and the same arithmetic everywhere gives the same bits everywhere. Infinities and NaN never
occur: writers saturate."""

import triton
import triton.language as tl


@triton.jit
def widen(byte):
    """uint8 -> bf16, exact: read as fp16, the same bits are a number 256 times too small, denormals included."""
    bits = byte.to(tl.uint16)
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return (half.to(tl.float16, bitcast=True) * 256.0).to(tl.bfloat16)


@triton.jit
def narrow(x):
    """float32 within ±448 -> uint8, nearest even."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    rounded = (size + 0x7FFFF + ((size >> 20) & 1)) >> 20  # exponent and three bits of fraction
    normal = rounded - (120 << 3)
    # Below 2^-6 e4m3 counts in steps of 2^-9; so does a float that lies in [2^14, 2^15).
    steps = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) & 0xF
    byte = tl.where(size < 0x3C800000, steps, normal)
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)
