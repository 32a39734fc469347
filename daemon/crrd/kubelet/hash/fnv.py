"""FNV-1a with 32 bits, the hash that kubelet keeps of a container, fast enough for ten thousand containers.

The xor of FNV-1a touches the lowest 8 bits alone, and what these become depends on nothing above them. So what a piece
of text does to a hash is a multiplication plus a number that depends on the piece and the hash's lowest 8 bits. Specs
are made of the same pieces over and over: these numbers are kept, and a known piece is one step, however long it is.
"""

from collections.abc import Callable

OFFSET = 0x811C9DC5
PRIME = 0x01000193
_MASK = 0xFFFFFFFF
_MOST_KEPT = 32_768
"""Steps that are kept, about 5 MiB."""
_Steps = dict[tuple[bytes, int], tuple[int, int]]


def _plain(value: int, data: bytes) -> int:
    """Go on from a hash."""
    for byte in data:
        value = ((value ^ byte) * PRIME) & _MASK
    return value


_PRINTED = tuple(f"{byte} ".encode() for byte in range(256))


def _printed(value: int, data: bytes) -> int:
    """Go on from a hash with the printed bytes and a space after each."""
    return _plain(value, b"".join([_PRINTED[byte] for byte in data]))


def _in_pieces(
    value: int, pieces: list[bytes], steps: _Steps, go_on: Callable[[int, bytes], int], size: Callable[[bytes], int]
) -> int:
    for piece in pieces:
        key = (piece, value & 0xFF)
        step = steps.get(key)
        if step is None:
            after = go_on(value, piece)
            if len(steps) < _MOST_KEPT:
                factor = pow(PRIME, size(piece), 1 << 32)
                steps[key] = (factor, (after - value * factor) & _MASK)
            value = after
        else:
            value = (value * step[0] + step[1]) & _MASK
    return value


_words: _Steps = {}
_strings: _Steps = {}


def fnv32a(data: bytes) -> int:
    """The hash of the bytes (http://www.isthe.com/chongo/tech/comp/fnv/, FNV-1a, 32 bits)."""
    first, *rest = data.split(b" ")
    return _in_pieces(_plain(OFFSET, first), [b" " + word for word in rest], _words, _plain, len)


def fnv32a_of_printed_bytes(data: bytes) -> int:
    """The hash of what Go's spew prints for a slice of bytes: `([]uint8)[123 34 125]`."""
    value = _plain(OFFSET, b"([]uint8)[")
    first, *rest = data[:-1].split(b'"')
    value = _in_pieces(_printed(value, first), [b'"' + piece for piece in rest], _strings, _printed, _printed_size)
    return _plain(value, (str(data[-1]) if data else "").encode() + b"]")


def _printed_size(data: bytes) -> int:
    return sum(len(_PRINTED[byte]) for byte in data)
