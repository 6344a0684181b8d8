"""Extracts answers from text: numbers as GSM8K and language models write them, and letters.

Values are `Fraction`s, so that `0.5`, `.50` and `1/2` are equal and nothing is rounded.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

CHOICES = "ABCD"
_STATEMENT = 400
"""How many characters after "the answer is" are searched."""

# Digits are limited: a million digits, or 1e999999999, must not take long.
_DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,12}(?!\d)|\d{1,60}(?!\d))"
_NUMBER = re.compile(
    rf"""
    (?<![A-Za-z0-9/^_])(?<!\d\.)                       # not inside a word or another number
    (?P<currency>[$€£¥₹]\ ?)?(?P<sign>[-+])?
    (?:
      (?P<mixed>\d{{1,20}})\ (?P<mixed_top>\d{{1,20}})/(?P<mixed_bottom>\d{{1,20}})(?![\d/])
      | (?P<top>{_DIGITS})\ ?/\ ?(?P<bottom>{_DIGITS})(?![\d/])
      | (?P<whole>{_DIGITS})(?P<point>\.\d{{1,60}}(?!\d))?
        (?:[eE](?P<exponent>[-+]?\d{{1,2}})(?!\d))?
      | (?P<decimal>\.\d{{1,60}}(?!\d))
    )
    (?:\ ?(?P<scale>thousand|million|billion)\b)?
    """,
    re.VERBOSE | re.ASCII,
)
_OPERAND_BEFORE = re.compile(r"[0-9)\]}%]\s*$|[A-Za-z]$")
_EXACT = re.compile(r"#### (-?(?:\d{1,3}(?:,\d{3}){1,12}|\d{1,60})(?:\.\d{1,60})?)", re.ASCII)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_ANSWER = re.compile(
    r"\b(?:answer|result)\b[\s*_]*(?:is|was|equals|comes to|=|:)", re.IGNORECASE | re.ASCII
)
_LISTED_LETTER = re.compile(
    r"\(([A-D])\)|(?<![A-Za-z0-9'’])([A-D])(?=[).:](?!\w)|\s*$)", re.MULTILINE
)
_LETTER = re.compile(r"(?<![A-Za-z0-9'’])([A-D])(?![A-Za-z0-9'’])")
_MINUS = dict.fromkeys(map(ord, "−–—‐‑‒﹣－"), "-")
_LATEX = [
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r" \1/\2 "),
    (re.compile(r"\\(?:text|mathrm|mathbf|textbf)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"(?<=\d)(?:\\[,!;:]|\{,\}|['’\u00a0\u2009\u202f])(?=\d{3}(?!\d))"), ","),
    (re.compile(r"\\([$%#&_])"), r"\1"),
    (re.compile(r"\\[()\[\]]|\*\*|__|`"), " "),
    (re.compile(r"(?<=\d)\s*(?:\\times|[×*x])\s*10\s*\^\s*\{?([-+]?\d{1,2})\}?(?!\d)"), r"e\1"),
]
_EUROPEAN = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+),(\d{1,2})(?![\d.,]\d)")


def exact_answer(text: str) -> Fraction | None:
    r"""Return the number of a last line `#### 42`, as in GSM8K itself; else `None`.

    The line has no other content, thousands may be separated by commas, and every other `####`
    line of the text must have the same value.

    >>> exact_answer("48/2 = 24\n#### 1,024")
    Fraction(1024, 1)
    >>> exact_answer("#### 24 clips") is None
    True
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith("####")]
    if not marked or lines[-1] != marked[-1]:
        return None
    found = [_EXACT.fullmatch(line) for line in marked]
    values = {Fraction(one[1].replace(",", "")) if one else None for one in found}
    return values.pop() if len(values) == 1 else None


def lenient_answer(text: str) -> Fraction | None:
    r"""Return the number that a text gives as its answer, as people and models write it.

    What follows the last `####` counts; else the last `\boxed{…}`; else the last "the answer
    is"; else the last number. Currencies, units, separators and LaTeX are ignored.

    >>> lenient_answer("The answer is $1,234.00.")
    Fraction(1234, 1)
    >>> lenient_answer(r"So we get \boxed{\frac{3}{4}} of it.")
    Fraction(3, 4)
    """
    for statement in _statements(text):
        plain = _plain(statement)
        numbers = list(_NUMBER.finditer(plain))
        # "The answer is 6 * 7 = 42": the first number after the last equals sign.
        candidates = [number for number in numbers if number.start() > plain.rfind("=")]
        if numbers:
            return _value(candidates[0] if candidates else numbers[-1])
    numbers = [] if _is_marked(text) else list(_NUMBER.finditer(_plain(text)))
    return _value(numbers[-1]) if numbers else None


def exact_choice(text: str) -> str | None:
    """Return the letter of a text that is only a letter, such as `B`."""
    letter = text.strip()
    return letter if len(letter) == 1 and letter in CHOICES else None


def lenient_choice(text: str) -> str | None:
    """Return the letter that a text gives as its answer: `(b)`, `The answer is B.`, `B) 42`.

    Lowercase letters count only if the text is only the letter; otherwise `a` is a word.
    """
    bare = re.fullmatch(r"[\s(\[*#]*([A-Da-d])[\s)\].:*]*", text)
    if bare:
        return bare[1].upper()
    for statement in _statements(text):
        found = _LETTER.search(_plain(statement))
        if found:
            return found[1]
    letters = _LISTED_LETTER.findall(_plain(text))
    return "".join(letters[-1]) if letters else None


def _is_marked(text: str) -> bool:
    return "####" in text or _boxed(text) is not None


def _statements(text: str) -> list[str]:
    """Return the parts of a text that state its answer, the most relevant one first."""
    if "####" in text:
        return [text.rpartition("####")[2].strip().partition("\n")[0]]
    boxed = _boxed(text)
    if boxed is not None:
        return [boxed]
    # To the end of the sentence. A decimal point does not end one.
    ends = [stated.end() for stated in _ANSWER.finditer(text)]
    return [
        re.split(r"\n|\.(?=\s|$)", text[end : end + _STATEMENT].lstrip(), maxsplit=1)[0]
        for end in reversed(ends[-50:])
    ]


def _boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}`, with braces inside it."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for end in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if not depth:
            return text[begin:end]
    return None


def _plain(text: str) -> str:
    """Return the text with LaTeX, and Unicode minus signs, digits and fractions, in ASCII."""
    text = "".join(map(_plain_character, text.translate(_MINUS)))
    for pattern, by in _LATEX:
        text = pattern.sub(by, text)
    return _EUROPEAN.sub(lambda match: f"{match[1].replace('.', '')}.{match[2]}", text)


def _plain_character(character: str) -> str:
    if character.isascii():
        return character
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.digit(character))
    if category == "No":
        form = unicodedata.normalize("NFKC", character)
        return f" {form.replace('⁄', '/')}" if "⁄" in form else f"^{form}"
    return character


def _value(match: re.Match[str]) -> Fraction:
    part = {name: (text or "").replace(",", "") for name, text in match.groupdict().items()}
    if part["mixed"]:
        value = int(part["mixed"]) + _fraction(part["mixed_top"], part["mixed_bottom"])
    elif part["top"]:
        value = _fraction(part["top"], part["bottom"])
    elif part["decimal"]:
        value = Fraction(f"0{part['decimal']}")
    else:
        value = Fraction(part["whole"] + part["point"]) * Fraction(10) ** int(part["exponent"] or 0)
    value *= _SCALES.get(part["scale"], 1)
    return -value if _is_negative(match) else value


def _fraction(top: str, bottom: str) -> Fraction:
    return Fraction(int(top), int(bottom) or 1)


def _is_negative(match: re.Match[str]) -> bool:
    """Whether the minus before the number is its sign: not in `5 - 3`, `8-3` or `x-3`."""
    before = match.string[max(0, match.start() - 16) : match.start()]
    if match["sign"] == "-":
        return match["currency"] is not None or not _OPERAND_BEFORE.search(before)
    if re.search(r"(?:^|\n) *- +$", before):  # the bullet of a list
        return False
    before = before.rstrip(" ")
    return before.endswith("-") and not _OPERAND_BEFORE.search(before[:-1].rstrip(" "))
