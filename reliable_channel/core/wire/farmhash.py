"""Implements FarmHash64 ``Fingerprint64``, the hash of nim-sds filters (LIP-109). Pure Python: ids are short, and each
is hashed once. The published wheel needs a compiler on most machines."""

from __future__ import annotations

_MASK = (1 << 64) - 1
# FarmHash's own constants: some primes between 2^63 and 2^64.
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F


def fingerprint64(data: bytes) -> int:
    """The 64-bit fingerprint of ``data``, unsigned."""
    length = len(data)
    if length <= 16:
        return _up_to_16(data, length)
    if length <= 32:
        return _up_to_32(data, length)
    if length <= 64:
        return _up_to_64(data, length)
    return _long(data, length)


def _fetch(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _rotate(value: int, by: int) -> int:
    value &= _MASK
    return (value >> by) | (value << (64 - by)) & _MASK


def _shift_mix(value: int) -> int:
    value &= _MASK
    return value ^ (value >> 47)


def _mix(u: int, v: int, mul: int) -> int:
    a = _shift_mix(((u ^ v) & _MASK) * mul)
    b = _shift_mix(((v ^ a) & _MASK) * mul)
    return b * mul & _MASK


def _up_to_16(data: bytes, length: int) -> int:
    mul = _K2 + length * 2
    if length >= 8:
        a = _fetch(data, 0) + _K2
        b = _fetch(data, length - 8)
        return _mix((_rotate(b, 37) * mul + a) & _MASK, ((_rotate(a, 25) + b) * mul) & _MASK, mul)
    if length >= 4:
        first = int.from_bytes(data[:4], "little")
        return _mix(length + (first << 3), int.from_bytes(data[length - 4 :], "little"), mul)
    if length:
        y = data[0] + (data[length >> 1] << 8)
        z = length + (data[length - 1] << 2)
        return _shift_mix((y * _K2 ^ z * _K0) & _MASK) * _K2 & _MASK
    return _K2


def _up_to_32(data: bytes, length: int) -> int:
    mul = _K2 + length * 2
    a = _fetch(data, 0) * _K1
    b = _fetch(data, 8)
    c = _fetch(data, length - 8) * mul
    d = _fetch(data, length - 16) * _K2
    first = (_rotate(a + b, 43) + _rotate(c, 30) + d) & _MASK
    return _mix(first, (a + _rotate(b + _K2, 18) + c) & _MASK, mul)


def _up_to_64(data: bytes, length: int) -> int:
    mul = _K2 + length * 2
    a = _fetch(data, 0) * _K2
    b = _fetch(data, 8)
    c = _fetch(data, length - 8) * mul
    d = _fetch(data, length - 16) * _K2
    y = (_rotate(a + b, 43) + _rotate(c, 30) + d) & _MASK
    z = _mix(y, (a + _rotate(b + _K2, 18) + c) & _MASK, mul)
    e = _fetch(data, 16) * mul
    f = _fetch(data, 24)
    g = (y + _fetch(data, length - 32)) * mul
    h = (z + _fetch(data, length - 24)) * mul
    first = (_rotate(e + f, 43) + _rotate(g, 30) + h) & _MASK
    return _mix(first, (e + _rotate(f + a, 18) + g) & _MASK, mul)


def _weak(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    z = _fetch(data, at + 24)
    a += _fetch(data, at)
    b = _rotate(b + a + z, 21)
    c = a
    a += _fetch(data, at + 8) + _fetch(data, at + 16)
    b += _rotate(a, 44)
    return (a + z) & _MASK, (b + c) & _MASK


def _long(data: bytes, length: int) -> int:
    x = 81
    y = (81 * _K1 + 113) & _MASK
    z = _shift_mix(y * _K2 + 113) * _K2 & _MASK
    v = w = (0, 0)
    x = (x * _K2 + _fetch(data, 0)) & _MASK
    end = (length - 1) // 64 * 64
    for at in range(0, end, 64):
        x, y, z, v, w = _round(data, at, (x, y, z, v, w), _K1, 1)
    at = end + ((length - 1) & 63) - 63
    mul = _K1 + ((z & 0xFF) << 1)
    w = (w[0] + ((length - 1) & 63), w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    x, y, z, v, w = _round(data, at, (x, y, z, v, w), mul, 9)
    return _mix(
        (_mix(v[0], w[0], mul) + _shift_mix(y) * _K0 + z) & _MASK,
        (_mix(v[1], w[1], mul) + x) & _MASK,
        mul,
    )


_State = tuple[int, int, int, tuple[int, int], tuple[int, int]]


def _round(data: bytes, at: int, state: _State, mul: int, weight: int) -> _State:
    """Compute one 64-byte round; the last one has another multiplier and weights two of its inputs by 9."""
    x, y, z, v, w = state
    x = _rotate(x + y + v[0] + _fetch(data, at + 8), 37) * mul
    y = _rotate(y + v[1] + _fetch(data, at + 48), 42) * mul
    x = (x ^ (w[1] * weight)) & _MASK
    y = (y + v[0] * weight + _fetch(data, at + 40)) & _MASK
    z = _rotate(z + w[0], 33) * mul & _MASK
    v = _weak(data, at, v[1] * mul, x + w[0])
    w = _weak(data, at + 32, z + w[1], y + _fetch(data, at + 16))
    return z, y, x, v, w
