"""Words that others may have written, made safe for a terminal."""


def plain(words: str) -> str:
    """The words, with escapes for what is not printable.

    Whoever may write a status or an event could else have the terminal of whoever asks do as they like.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in words)
