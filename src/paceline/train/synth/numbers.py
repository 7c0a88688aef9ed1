"""Arithmetic as it is done on paper: digit by digit, in words that a small model can follow.

A model that reads digits one by one learns columns, not whole sums: each step of the working looks at two
digits and a carry. Shorter numbers are filled with zeros, so that the columns line up.
"""

from __future__ import annotations

from paceline.train.synth.dialogue import Draw, Split, is_held_out

HELD_OUT_PAIRS = 16
"""One pair of operands in so many is held out."""


def pair_allowed(a: int, b: int, split: Split) -> bool:
    """Whether an operand pair belongs to the split, whatever its order and operation.

    Single digits are free on both sides: every column of every sum is one.
    """
    if a < 10 and b < 10:
        return True
    return is_held_out("pair", min(a, b), max(a, b), one_in=HELD_OUT_PAIRS) == (split == "held_out")


def operand(draw: Draw, digits: int) -> int:
    """A number of so many digits."""
    return draw.between(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def added(a: int, b: int) -> str:
    """The working of a + b."""
    width = max(len(str(a)), len(str(b)))
    top, low = f"{a:0{width}}", f"{b:0{width}}"
    steps, carry = [], 0
    for x, y in zip(reversed(top), reversed(low), strict=True):
        total = int(x) + int(y) + carry
        left = f"{x}+{y}+1" if carry else f"{x}+{y}"
        carry = total // 10
        steps.append(f"{left}={total}, write {total % 10}" + (", carry 1" if carry else ""))
    if carry:
        steps.append("write 1")
    return f"{top} + {low}: {'; '.join(steps)}."


def subtracted(a: int, b: int) -> str:
    """The working of a - b for a >= b."""
    assert a >= b
    width = len(str(a))
    top, low = f"{a:0{width}}", f"{b:0{width}}"
    steps, borrow = [], 0
    for x, y in zip(reversed(top), reversed(low), strict=True):
        value = int(x) - int(y) - borrow
        head = f"1{x}" if value < 0 else x
        tail = f"-{y}-1" if borrow else f"-{y}"
        borrow = int(value < 0)
        steps.append(f"{head}{tail}={value % 10}" + (", borrow 1" if borrow else ""))
    return f"{top} - {low}: {'; '.join(steps)}."


def multiplied(a: int, b: int) -> str:
    """The working of a x b for a single digit b."""
    assert 0 <= b < 10
    digits = str(a)
    steps, carry = [], 0
    for place, x in enumerate(reversed(digits)):
        total = int(x) * b + carry
        left = f"{x}*{b}+{carry}" if carry else f"{x}*{b}"
        carry = total // 10
        whole = place + 1 == len(digits)
        steps.append(f"{left}={total}, write {total if whole else total % 10}"
                     + (f", carry {carry}" if carry and not whole else ""))  # fmt: skip
    return f"{a} * {b}: {'; '.join(steps)}."


def working(a: int, sign: str, b: int) -> str:
    """The working of any of the three, negative differences included."""
    match sign:
        case "+":
            return added(a, b)
        case "-" if a >= b:
            return subtracted(a, b)
        case "-":
            return f"{b} is larger than {a}, so the result is negative. {subtracted(b, a)}"
    return multiplied(a, b)


def value(a: int, sign: str, b: int) -> int:
    """a sign b, exactly."""
    return a + b if sign == "+" else a - b if sign == "-" else a * b
