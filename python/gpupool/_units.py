"""Units for people."""


def size(nbytes: int) -> str:
    """A number of bytes, with three digits."""
    if nbytes < 1000:
        return f"{nbytes} B"
    value, power = float(nbytes), 0
    while value >= 999.5:
        value /= 1024
        power += 1
    return f"{value:#.3g}".rstrip(".") + f" {'KMGTPE'[power - 1]}iB"
