from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crrd_forecast.hash.quantity import NOTHING, parse


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0.5", "500m"),
        ("500m", "500m"),
        ("1.5Gi", "1536Mi"),
        ("1024", "1024"),
        ("1024Ki", "1Mi"),
        ("1000", "1k"),
        ("0", "0"),
        ("0Mi", "0"),
        ("00.10", "100m"),
        ("-1.5", "-1500m"),
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("1000e0", "1e3"),
        ("12e0", "12e0"),
        ("0.5e0", "500e-3"),
        ("1000.0e-3", "1"),
        ("0.5Ki", "512"),
        ("0.0001Ki", "102400u"),
        ("0.3Ki", "307200m"),
        ("1.1Ki", "1126400m"),
        ("100n", "100n"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("12345678901234567890", "12345678901234567890"),
        ("-2.5Gi", "-2560Mi"),
        ("9999999999Ei", "9223372036854775807"),
        ("+5", "+5"),
        (".5", "500m"),
        ("5.", "5."),
        ("1E", "1E"),
    ],
)
def test_canonical(text: str, canonical: str) -> None:
    assert parse(text).canonical() == canonical


@pytest.mark.parametrize(
    "text", ["", ".", "+", "-", "m", "1x", "much", "1 ", "1ee3", "1e", "1K", "1e1001", "٣", "1" * 300, "--1", "1_0"]
)
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse(text)


def test_a_quantity_beyond_the_suffixes() -> None:
    with pytest.raises(ValueError, match="no suffix"):
        parse("1000000000000000000000").canonical()
    assert NOTHING.canonical() == "0"


@given(st.integers(-(2**70), 2**70), st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Mi", "e3"]))
def test_a_canonical_quantity_means_the_same(number: int, suffix: str) -> None:
    found = parse(f"{number}{suffix}")
    try:
        canonical = found.canonical()
    except ValueError:
        assert abs(found.value) >= 10**21
        return
    assert parse(canonical).value == found.value
    assert parse(parse(canonical).canonical()).canonical() == parse(canonical).canonical()


@given(st.integers(0, 10**6), st.integers(0, 999))
def test_value(whole: int, thousandths: int) -> None:
    assert parse(f"{whole}.{thousandths:03}").value == Fraction(whole * 1000 + thousandths, 1000)
    assert parse(f"{whole * 1000 + thousandths}m").value == Fraction(whole * 1000 + thousandths, 1000)
