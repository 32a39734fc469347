"""FNV-1a with 32 bits, the hash that kubelet keeps of a container, fast enough for ten thousand containers."""

OFFSET = 0x811C9DC5
PRIME = 0x01000193
_MASK = 0xFFFFFFFF


def fnv32a(data: bytes) -> int:
    """The hash of the bytes (http://www.isthe.com/chongo/tech/comp/fnv/, FNV-1a, 32 bits)."""
    value = OFFSET
    for byte in data:
        value = ((value ^ byte) * PRIME) & _MASK
    return value


_PRINTED: tuple[tuple[int, bytes], ...] = tuple(
    (pow(PRIME, len(word), 1 << 32), word) for word in (str(byte).encode() + b" " for byte in range(256))
)
_OPENING = b"([]uint8)["
_rows: dict[int, list[int]] = {}


def fnv32a_of_printed_bytes(data: bytes) -> int:
    """The hash of what Go's spew prints for a slice of bytes: `([]uint8)[123 34 125]`.

    The xor of FNV-1a touches the lowest 8 bits alone, and what these become depends on nothing above them. So what a
    whole word does to the hash is a multiplication plus a number that depends on the word and the lowest 8 bits: one
    step for a word in place of one for each of its characters. These numbers are worked out once per word.
    """
    value = fnv32a(_OPENING)
    for byte in data[:-1]:
        row = _rows.get(byte)
        if row is None:
            row = _rows[byte] = _row(byte)
        value = (value * _PRINTED[byte][0] + row[value & 0xFF]) & _MASK
    for byte in (str(data[-1]) if data else "").encode() + b"]":
        value = ((value ^ byte) * PRIME) & _MASK
    return value


def _row(byte: int) -> list[int]:
    """For each lowest 8 bits that a hash can have: what is to be added for the printed byte and the space after it."""
    factor, word = _PRINTED[byte]
    row = []
    for low in range(256):
        value = low
        for character in word:
            value = ((value ^ character) * PRIME) & _MASK
        row.append((value - low * factor) & _MASK)
    return row
