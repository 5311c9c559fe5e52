"""Computes the matrices of Reed–Solomon codes in closed form, without elimination, so a set of 256 segments costs as
little as one of ten.

Every code here evaluates a polynomial at points of a field in which addition is xor. Values at some points follow from
values at others by Lagrange's formula, and a Cauchy matrix has an inverse of the same shape. All products are sums of
logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reliable_channel.core.segmentation.codecs.field import Elements, Field


def interpolation(field: Field, known: Sequence[int], wanted: Sequence[int]) -> Elements:
    """The matrix (wanted × known) that maps a polynomial's values at the ``known`` points, which must be more than its
    degree, to its values at the ``wanted`` points. All points must differ."""
    of, at = np.asarray(known), np.asarray(wanted)
    differences = log_sums(field, of, of)
    reach = field.log[at[:, None] ^ of[None, :]]
    return power(field, reach.sum(axis=1)[:, None] - reach - differences[None, :])


def cauchy_solution(
    field: Field, rows: Sequence[int], missing: Sequence[int], others: Sequence[int]
) -> tuple[Elements, Elements]:
    """For the Cauchy matrix C[i][d] = 1 / (i xor d): the inverse of its square part (``rows`` × ``missing``), and that
    inverse times the columns ``others``. All points must differ."""
    i, d, o = np.asarray(rows), np.asarray(missing), np.asarray(others, dtype=np.int64)
    row_by_missing = field.log[i[:, None] ^ d[None, :]]
    over_rows, over_missing = row_by_missing.sum(axis=0), row_by_missing.sum(axis=1)
    own_rows, own_missing = log_sums(field, i, i), log_sums(field, d, d)
    solution = power(
        field,
        over_rows[:, None] - own_missing[:, None] + over_missing[None, :] - own_rows[None, :] - row_by_missing.T,
    )
    other_rows = field.log[o[:, None] ^ i[None, :]].sum(axis=1)
    other_missing = field.log[d[:, None] ^ o[None, :]]
    mixed = power(
        field,
        (over_rows - own_missing)[:, None] - other_rows[None, :] + other_missing.sum(axis=0)[None, :] - other_missing,
    )
    return solution, mixed


def log_sums(field: Field, points: Elements, others: Elements) -> Elements:
    """Return, for each of ``points``, the logarithm of the product of its differences from ``others`` except itself."""
    logs = field.log[points[:, None] ^ others[None, :]]
    sums: Elements = np.where(points[:, None] == others[None, :], 0, logs).sum(axis=1)
    return sums


def power(field: Field, exponents: Elements) -> Elements:
    """The elements with these logarithms, of any size."""
    values: Elements = field.exp[exponents % field.order]
    return values
