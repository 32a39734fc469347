"""FNV-1a with 32 bits, the hash that kubelet keeps of a container, fast enough for ten thousand containers.

The xor of FNV-1a touches the lowest 8 bits alone, and what these become depends on nothing above them. So what a piece
of text does to a hash is a multiplication plus a number that depends on the piece and the hash's lowest 8 bits. Specs
are made of the same pieces over and over: these numbers are kept, and a known piece is one step, however long it is.
"""

OFFSET = 0x811C9DC5
PRIME = 0x01000193
_MASK = 0xFFFFFFFF
_MOST_KEPT = 32_768  # Steps that are kept, about 8 MiB
_PRINTED = tuple(str(byte).encode() for byte in range(256))
_QUOTE = b" 34"  # The quotation mark as it is printed: it stands between the pieces of JSON
_steps: dict[tuple[bytes, int], tuple[int, int]] = {}


def _go_on(value: int, data: bytes) -> int:
    """Go on from a hash."""
    for byte in data:
        value = ((value ^ byte) * PRIME) & _MASK
    return value


def fnv32a(data: bytes, separator: bytes = b" ") -> int:
    """The hash of the bytes (http://www.isthe.com/chongo/tech/comp/fnv/); pieces begin with the separator."""
    first, *rest = data.split(separator)
    value = _go_on(OFFSET, first)
    for piece in rest:
        key = (separator + piece, value & 0xFF)
        if (step := _steps.get(key)) is None:
            factor, after = pow(PRIME, len(key[0]), 1 << 32), _go_on(value, key[0])
            step = (factor, (after - value * factor) & _MASK)
            if len(_steps) < _MOST_KEPT:
                _steps[key] = step
        value = (value * step[0] + step[1]) & _MASK
    return value


def fnv32a_of_printed_bytes(data: bytes) -> int:
    """The hash of what Go's spew prints for a slice of bytes: `([]uint8)[123 34 125]`."""
    return fnv32a(b"([]uint8)[" + b" ".join([_PRINTED[byte] for byte in data]) + b"]", _QUOTE)
