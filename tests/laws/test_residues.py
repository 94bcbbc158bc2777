"""Residues in a chain of fields: sums, products, exponentials and roots, also where some are not
known."""

from fractions import Fraction

from pypm.laws.refutation.residues import ResidueAlgebra, _chain, _of_number

A = ResidueAlgebra(1)
X, Y = A.drawn("x", (0, 1)), A.drawn("y", ())
PRIMES = [prime for prime, _ in _chain()]


def test_sums_and_products_are_those_of_each_field() -> None:
    pairs = list(zip(X.parts, Y.parts, PRIMES, strict=True))
    assert all(a != b for a, b, _ in pairs)
    assert (X + Y).parts == tuple((a + b) % p for a, b, p in pairs)
    assert (X - Y).parts == tuple((a - b) % p for a, b, p in pairs)
    assert (X * Y * 3).parts == tuple(3 * a * b % p for a, b, p in pairs)


def test_exponentials_of_sums_are_products() -> None:
    assert A.exp(X + Y).parts == (A.exp(X) * A.exp(Y)).parts
    assert A.exp(X).parts != A.exp(Y).parts
    assert [part is None for part in A.exp(X).parts] == [False, False, True]
    assert [part is None for part in (A.exp(A.exp(X)) + Y).parts] == [False, True, True]


def test_numbers_stay_known() -> None:
    third = A.power(A.scalar(3), -1)
    assert third.number == Fraction(1, 3) and third.parts == _of_number(Fraction(1, 3)).parts
    assert (third * 3 - 1).parts == (0, 0, 0) and (X + third).number is None
    root = A.power(X * X, Fraction(1, 2))
    assert (root * root).parts == (X * X).parts
    assert A.function("max", X, Y).parts == A.function("max", Y, X).parts
