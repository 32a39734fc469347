"""FNV-1a with 32 bits, kubelet's hash of containers, fast enough for ten thousand containers.

The xor of FNV-1a changes only the lowest 8 bits, and these depend on no higher bits. So the effect of a piece of text
on a hash is a multiplication, plus a number that depends only on the piece and on the hash's lowest 8 bits. Specs
consist of the same pieces again and again. These numbers are cached, so a known piece takes one step.
"""

from crrd.kubelet.image_hash import PRIME, fnv1a

_MASK = 0xFFFFFFFF
_MOST_KEPT = 32_768  # Most cached steps, about 8 MiB
_PRINTED = tuple(str(byte).encode() for byte in range(256))
_QUOTE = b" 34"  # The quotation mark as printed; it separates the pieces of JSON
_steps: dict[tuple[bytes, int], tuple[int, int]] = {}


def fnv32a(data: bytes, separator: bytes = b" ") -> int:
    """Return the hash of the bytes (http://www.isthe.com/chongo/tech/comp/fnv/). Pieces begin with the separator."""
    first, *rest = data.split(separator)
    value = fnv1a(first)
    for piece in rest:
        key = (separator + piece, value & 0xFF)
        if (step := _steps.get(key)) is None:
            factor, after = pow(PRIME, len(key[0]), 1 << 32), fnv1a(key[0], value)
            step = (factor, (after - value * factor) & _MASK)
            if len(_steps) < _MOST_KEPT:
                _steps[key] = step
        value = (value * step[0] + step[1]) & _MASK
    return value


def fnv32a_of_printed_bytes(data: bytes) -> int:
    """Return the hash of a byte slice as printed by Go's spew: `([]uint8)[123 34 125]`."""
    return fnv32a(b"([]uint8)[" + b" ".join([_PRINTED[byte] for byte in data]) + b"]", _QUOTE)
