"""Models of a few formulas, evaluated by this program: sums, products, min and max. No code is run.

sales = min(demand, capacity)
profit = sales * price - rent
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.names import shown

LINE = re.compile(r"([a-z_]\w{0,39}) *= *(.{1,120})", re.ASCII)
TOKEN = re.compile(r" *([A-Za-z_]\w*|[0-9]+|[-+*/(),])", re.ASCII)
LARGEST_LINES = 100
LARGEST_NUMBER = 10**30
"""Largest numerator or denominator. Without it, a hundred squares in a row would fill the memory."""


def figures(text: str, inputs: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Evaluate the formulas of a model from top to bottom.

    Args:
        text: a formula per line; each may use the inputs and the figures above it.
        inputs: name → value.

    Returns:
        Figure → value, in the order of the formulas.

    Raises:
        UserError: a line is not such a formula. Names the line.
    """
    results: dict[str, Fraction] = {}
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if len(lines) > LARGEST_LINES:
        raise UserError(f"the model has more than {LARGEST_LINES} formulas")
    for line in lines:
        match = LINE.fullmatch(line)
        if match is None:
            raise UserError(f"{shown(line[:60])} is not a formula")
        try:
            results[match[1]] = _Expression(match[2], {**inputs, **results}).value()
        except (ValueError, ZeroDivisionError) as error:
            raise UserError(f"{shown(line[:60])} cannot be computed: {error}") from None
    return results


class _Expression:
    """Recursive descent over an expression. It raises ValueError at what it does not know."""

    def __init__(self, text: str, values: Mapping[str, Fraction]) -> None:
        self.values = values
        self.tokens: list[str] = []
        end = 0
        while end < len(text):
            match = TOKEN.match(text, end)
            if match is None:
                raise ValueError(f"column {end + 1} cannot be read")
            self.tokens.append(match[1])
            end = match.end()

    def value(self) -> Fraction:
        result = self._sum()
        if self.tokens:
            raise ValueError(f"{self.tokens[0]!r} was not expected")
        return result

    def _sum(self) -> Fraction:
        result = self._product()
        while self._next() in ("+", "-"):
            sign = 1 if self.tokens.pop(0) == "+" else -1
            result = _limited(result + sign * self._product())
        return result

    def _product(self) -> Fraction:
        result = self._factor()
        while self._next() in ("*", "/"):
            if self.tokens.pop(0) == "*":
                result = _limited(result * self._factor())
            else:
                result = _limited(result / self._factor())
        return result

    def _factor(self) -> Fraction:
        token = self._next()
        if not token:
            raise ValueError("it ends too early")
        self.tokens.pop(0)
        if token == "-":
            return -self._factor()
        if token == "(":
            result = self._sum()
            self._expect(")")
            return result
        if token in ("min", "max"):
            self._expect("(")
            first = self._sum()
            self._expect(",")
            second = self._sum()
            self._expect(")")
            return min(first, second) if token == "min" else max(first, second)
        if token.isdigit():
            return _limited(Fraction(token))
        if token not in self.values:
            raise ValueError(f"there is no value {token!r}")
        return self.values[token]

    def _next(self) -> str:
        return self.tokens[0] if self.tokens else ""

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise ValueError(f"{token!r} is missing")
        self.tokens.pop(0)


def _limited(number: Fraction) -> Fraction:
    if max(abs(number.numerator), number.denominator) > LARGEST_NUMBER:
        raise ValueError("a number is too large")
    return number
