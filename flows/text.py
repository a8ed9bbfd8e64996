"""Text that a model or an environment wrote, made safe for a terminal: nothing in it moves the cursor, colours, hides or reorders."""

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # control, format (bidirectional and invisible ones), surrogates, private, separators


def visible(text: str) -> str:
    r"""The text with every control or format character as an escape (`\x1b`, `\u202e`); line breaks and tabs stay."""
    return "".join(one if one in "\n\t" or unicodedata.category(one) not in _HIDDEN else _escape(one) for one in text)


def one_line(text: str) -> str:
    r"""As `visible`, with line breaks and tabs as escapes too."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
