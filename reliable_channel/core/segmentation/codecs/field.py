"""Implements the finite fields of the codecs in NumPy: log and exp tables, and matrices over them (Segmentation 0.1,
*Reed–Solomon*)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.int64]

# The bases and the polynomials (below) are those of native Leopard: others would give other bytes on the wire.
CANTOR_8 = (1, 214, 152, 146, 86, 200, 88, 230)
CANTOR_16 = (
    0x0001,
    0xACCA,
    0x3C0E,
    0x163E,
    0xC582,
    0xED2E,
    0x914C,
    0x4012,
    0x6C98,
    0x10D8,
    0x6A72,
    0xB900,
    0xFDB8,
    0xFB34,
    0xFF38,
    0x991E,
)


class Field:
    """GF(2^bits): an integer v stands for φ(v), the xor of the basis elements over v's set bits. Without a basis v
    stands for itself (ordinary coordinates). Addition is xor in both."""

    def __init__(self, bits: int, polynomial: int, basis: Sequence[int] | None = None) -> None:
        # Powers of the generator by their exponents, then integers by the elements they stand for, then both inverted
        # and combined: logarithms and powers are looked up in the coordinates of the basis.
        self.order = (1 << bits) - 1
        """The number of nonzero elements."""
        power = np.zeros(self.order, dtype=np.int64)
        state = 1
        for exponent in range(self.order):
            power[exponent] = state
            state <<= 1
            if state >> bits:
                state ^= polynomial
        phi = np.zeros(1 << bits, dtype=np.int64)
        for bit in range(bits):
            phi[1 << bit : 2 << bit] = phi[: 1 << bit] ^ (1 << bit if basis is None else basis[bit])
        coordinates = np.empty_like(phi)
        coordinates[phi] = np.arange(1 << bits)
        logarithm = np.zeros(1 << bits, dtype=np.int64)
        logarithm[power] = np.arange(self.order)
        self.log: Elements = logarithm[phi]
        # Twice in a row, so that the sum of two logarithms is an index without a division.
        self.exp: Elements = coordinates[np.concatenate([power, power])]
        self._nothing = 2 * self.order
        self._short_log = np.where(np.arange(1 << bits) == 0, self._nothing, self.log).astype(np.int32)
        self._short_exp = np.concatenate([self.exp, np.zeros(self._nothing + 1, np.int64)]).astype(np.uint16)

    def multiply(self, a: Elements | int, b: Elements | int) -> Elements:
        """Multiply a and b element by element."""
        a, b = np.asarray(a), np.asarray(b)
        product: Elements = np.where((a == 0) | (b == 0), 0, self.exp[self.log[a] + self.log[b]])
        return product

    def divide(self, a: Elements | int, b: Elements | int) -> Elements:
        """Divide a by b element by element; no b may be zero."""
        a, b = np.asarray(a), np.asarray(b)
        quotient: Elements = np.where(a == 0, 0, self.exp[self.log[a] - self.log[b] + self.order])
        return quotient

    def combine(self, matrix: Elements, symbols: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Multiply a matrix by rows of symbols with one look-up per coefficient and symbol, which is fastest for short
        rows. The logarithm of zero is so large that every sum with it maps to zero."""
        total = np.zeros((len(matrix), symbols.shape[1]), np.uint16)
        logs = self._short_log[symbols]
        for column, row in zip(self._short_log[matrix].T, logs, strict=True):
            total ^= self._short_exp[column[:, None] + row[None, :]]
        return total


@cache
def leopard_field(bits: int) -> Field:
    """Leopard's 8-bit or 16-bit field, in Cantor coordinates."""
    return Field(8, 0x11D, CANTOR_8) if bits == 8 else Field(16, 0x1002D, CANTOR_16)


@cache
def ordinary_field() -> Field:
    """GF(2^8) with polynomial 0x11D in ordinary coordinates: klauspost's."""
    return Field(8, 0x11D)
