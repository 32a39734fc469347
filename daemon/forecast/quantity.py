"""Kubernetes quantities ("500m", "1.5Gi") as Go's resource.Quantity holds them and writes them.

Source: k8s.io/apimachinery/pkg/api/resource, quantity.go and suffix.go. What this does not cover raises
UnknownQuantityError, so that nothing is ever guessed.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?((?:[eE][+-]?[0-9]+)|[A-Za-z]*)")
_SUFFIX_OF = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_INT64 = 2**63
_DIGITS = 18
_NANO = -9


class UnknownQuantityError(ValueError):
    """Not a quantity, or one beyond what is covered here."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A parsed quantity, field by field as Go keeps it."""

    value: Fraction
    format: str
    """DecimalSI, BinarySI or DecimalExponent; "" for Go's zero value."""
    int_value: int = 0
    int_scale: int = 0
    unscaled: int | None = None
    """Of the arbitrary precision form (scale 9); None where the fast one is in use."""
    cached: str = ""
    """The text that Go keeps where it is canonical as it was given."""

    def canonical(self) -> str:
        """The text that Go marshals.

        Raises:
            UnknownQuantityError: it needs a suffix beyond E.
        """
        return self.cached or _canonical(self.value, self.format)


ZERO = Quantity(Fraction(0), "")


def parse(text: str) -> Quantity:
    """Parse as ParseQuantity does.

    Raises:
        UnknownQuantityError: see there.
    """
    found = _SHAPE.fullmatch(text)
    if found is None or not (found[2] or found[3]):
        raise UnknownQuantityError(f"{text!r} is not a quantity")
    if text == "0":
        return Quantity(Fraction(0), "DecimalSI", cached=text)
    sign, whole, fraction, suffix = found[1], found[2].lstrip("0"), found[3] or "", found[4]
    base, exponent, form = _interpret(suffix, text)
    factor = Fraction(base) ** exponent
    value = (Fraction(int((whole + fraction) or "0"), 10 ** len(fraction))) * factor * (-1 if sign == "-" else 1)
    fast = _fast(sign, whole or "0", fraction, (exponent, form), text)
    if fast is not None:
        number, scale, cached = fast
        return Quantity(value, form, number, scale, None, cached)
    return _slow(value, form)


def _interpret(suffix: str, text: str) -> tuple[int, int, str]:
    """Base, exponent and format of a suffix."""
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix], "DecimalSI"
    if suffix in _BINARY:
        return 2, _BINARY[suffix], "BinarySI"
    if re.fullmatch(r"[eE][+-]?[0-9]+", suffix):
        return 10, int(suffix[1:]), "DecimalExponent"
    raise UnknownQuantityError(f"{text!r} is not a quantity: no suffix {suffix!r}")


def _fast(sign: str, whole: str, fraction: str, unit: tuple[int, str], text: str) -> tuple[int, int, str] | None:
    """The int64 form: value, scale and the text if it is canonical; None where Go takes the slow path."""
    exponent, form = unit
    if form == "BinarySI":
        if fraction:
            return None
        scale, mantissa = 0, 1 << exponent
        precision = 15 - len(whole) - exponent * 3 // 10 - 1
    else:
        scale, mantissa = exponent - len(fraction), 1
        precision = _DIGITS - len(whole) - len(fraction)
    if precision < 0 or scale < _NANO:
        return None
    shifted = whole + fraction
    number = int(shifted) * mantissa
    if number >= _INT64:
        return None
    signed = -number if sign == "-" else number
    if form == "BinarySI":
        canonical = exponent % 10 == 0 and int(shifted) & 0x07 != 0
    else:
        canonical = scale % 3 == 0 and not shifted.endswith("000") and shifted[0] != "0"
    return signed, scale, text if canonical else ""


def _slow(value: Fraction, form: str) -> Quantity:
    """The arbitrary precision form: rounded up to nano, capped for BinarySI, below 1 decimal."""
    size = abs(value) * 10**9
    unscaled = -(-size.numerator // size.denominator)
    if form == "BinarySI" and unscaled > (_INT64 - 1) * 10**9:
        raise UnknownQuantityError("a quantity beyond 2^63 - 1")
    if form == "BinarySI" and 0 < unscaled < 10**9:
        form = "DecimalSI"
    rounded = Fraction(unscaled, 10**9) * (-1 if value < 0 else 1)
    return Quantity(rounded, form, unscaled=unscaled * (-1 if value < 0 else 1))


def _canonical(value: Fraction, form: str) -> str:
    """As CanonicalizeBytes writes it."""
    if form == "BinarySI" and (abs(value) < 1024 or value.denominator != 1):
        form = "DecimalSI"
    if form == "BinarySI":
        number, steps = int(value), 0
        while number % 1024 == 0 and steps < len(_BINARY):
            number, steps = number // 1024, steps + 1
        return f"{number}{['', *_BINARY][steps]}"
    number, exponent = _mantissa(value)
    if form == "DecimalExponent":
        return f"{number}e{exponent}" if exponent else str(number)
    if exponent not in _SUFFIX_OF:
        raise UnknownQuantityError(f"a quantity with exponent {exponent}")
    return f"{number}{_SUFFIX_OF[exponent]}"


def _mantissa(value: Fraction) -> tuple[int, int]:
    """The number as an integer times a power of 1000, with as few zeros as that allows."""
    if value == 0:
        return 0, 0
    number, exponent = value * 10**9, -9
    if number.denominator != 1:
        raise UnknownQuantityError("a quantity below nano")
    whole = int(number)
    while whole % 1000 == 0:
        whole, exponent = whole // 1000, exponent + 3
    return whole, exponent
