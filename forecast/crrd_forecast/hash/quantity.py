"""Resource quantities ("500m", "1.5Gi"), parsed, compared and written as in Kubernetes, with Go's internal fields.

The rules are those of k8s.io/apimachinery, pkg/api/resource, which were the same from 1.7 to 1.30. A small quantity is
stored as an int64 and a power of ten, a larger one as a decimal with at most nine digits after the point. The text is
stored, too, if it is canonical. These details matter, because kubelets up to 1.15 hashed them.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_TEXT = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?((?:[eE][+-]?[0-9]+)|[A-Za-z]*)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX = {exponent: suffix for suffix, exponent in _BINARY.items()} | {0: ""}
_NANO = -9
_INT64_MAX = 2**63 - 1
_FAST_DIGITS = 18
_LONGEST = 256  # Maximum length of a quantity. Real ones are shorter, and a large exponent could take all memory.
_LARGEST_EXPONENT = 1000


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity as Go stores it: `unscaled` times ten to the power of `scale`."""

    unscaled: int
    scale: int
    format: str  # DecimalSI, BinarySI or DecimalExponent; "" if it was never set
    text: str = ""  # The original text if it was canonical, else ""
    big: bool = False  # Whether Go stores it as a decimal of any size instead of an int64

    @property
    def value(self) -> Fraction:
        """The numeric value."""
        return self.unscaled * Fraction(10) ** self.scale

    def canonical(self) -> str:
        """Return it as Kubernetes writes it in JSON: "0.5" is "500m". Raises ValueError if too large for any suffix."""
        if self.text:
            return self.text
        if not self.unscaled:
            return "0"
        value = self.value
        if self.format == "BinarySI" and abs(value) >= 1024 and value.denominator == 1:
            number, exponent = _without_factors(value.numerator, 1024)
            return f"{number}{_BINARY_SUFFIX[exponent * 10]}"
        number, exponent = _without_factors(self.unscaled, 10)
        exponent += self.scale
        number, exponent = number * 10 ** (exponent % 3), exponent - exponent % 3
        if self.format == "DecimalExponent":
            return f"{number}e{exponent}" if exponent else str(number)
        if exponent not in _DECIMAL_SUFFIX:
            raise ValueError(f"the quantity is out of range: there is no suffix for 10^{exponent}")
        return f"{number}{_DECIMAL_SUFFIX[exponent]}"


NOTHING = Quantity(0, 0, "")  # A quantity that was never set


def _without_factors(number: int, base: int) -> tuple[int, int]:
    times = 0
    while number and number % base == 0:
        number, times = number // base, times + 1
    return number, times


@lru_cache(maxsize=4096)
def parse(quantity: str) -> Quantity:
    """Parse a quantity. Raises ValueError."""
    if quantity == "0":
        return Quantity(0, 0, "DecimalSI", "0")
    match = _TEXT.fullmatch(quantity) if len(quantity) <= _LONGEST else None
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{quantity[:40]!r} is not a quantity")
    sign, whole, rest, suffix = match[1], match[2].lstrip("0") or "0", match[3] or "", match[4]
    kind, exponent = _suffix(suffix)
    digits = whole + rest
    fast = _fast(digits, len(rest), kind, exponent)
    if fast is None:
        return _big(int(digits), len(rest), kind, exponent, negative=sign == "-")
    number, scale = fast
    if kind == "BinarySI":
        canonical = int(digits) & 7 != 0
    else:
        canonical = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
    return Quantity(-number if sign == "-" else number, scale, kind, quantity if canonical else "")


def _suffix(suffix: str) -> tuple[str, int]:
    """Return the format and the exponent (of ten; of two for BinarySI) of a suffix."""
    if suffix in _DECIMAL:
        return "DecimalSI", _DECIMAL[suffix]
    if suffix in _BINARY:
        return "BinarySI", _BINARY[suffix]
    if suffix[-1].isdigit():
        exponent = int(suffix[1:])
        if abs(exponent) <= _LARGEST_EXPONENT:
            return "DecimalExponent", exponent
    raise ValueError(f"{suffix[:40]!r} is not a suffix of a quantity")


def _fast(digits: str, rest: int, kind: str, exponent: int) -> tuple[int, int] | None:
    """Return number and scale if Go stores an int64, else None. `rest` is the number of digits after the point."""
    if kind == "BinarySI":
        if rest or 15 - len(digits) - exponent * 3 // 10 - 1 < 0:
            return None
        number, scale = int(digits) << exponent, 0
    else:
        if len(digits) > _FAST_DIGITS:
            return None
        number, scale = int(digits), exponent - rest
    return (number, scale) if scale >= _NANO and number <= _INT64_MAX else None


def _big(unscaled: int, rest: int, kind: str, exponent: int, *, negative: bool) -> Quantity:
    """Make a decimal of any size, rounded up to nine digits after the point; with a binary suffix, at most an int64."""
    value = Fraction(unscaled, 10**rest)
    value *= Fraction(2) ** exponent if kind == "BinarySI" else Fraction(10) ** exponent
    nanos = value * 10**9
    number, scale = -(-nanos.numerator // nanos.denominator), _NANO
    if kind == "BinarySI" and number > _INT64_MAX * 10**9:
        number, scale = _INT64_MAX, 0
    elif kind == "BinarySI" and 0 < number < 10**9:
        kind = "DecimalSI"
    return Quantity(-number if negative else number, scale, kind, big=True)
