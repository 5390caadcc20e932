"""Secrets out of everything that is stored or shown besides the payload itself."""

from __future__ import annotations

import re
from typing import Final

from redrive.core.job import Json

MASK: Final = "[redacted]"
_NAME: Final = re.compile(
    r"pass(word|wd|phrase)|secret|token|(api|access|private)[_-]?key|authorization|credential|cookie|signature",
    re.IGNORECASE,
)
_PASSWORD: Final = re.compile(r"(?:(?:^|[_-])pwd|pass(?:word|wd|phrase)|secret|api[_-]?key)$", re.IGNORECASE)
"""Whose value is a secret even where it is a number."""
_LINES: Final = r"(?:[^-]++|-(?!----(?:BEGIN|END) ))*+"
_IS: Final = r"['\"]?\s*+[=:]\s*+"
_COUNT: Final = rf"{_IS}['\"]?[0-9][0-9.,]*+(?:[\s'\";)}}\]]|\Z)"
_LABELS: Final = (
    rf"pass(?:word|wd|phrase)|pwd(?!{_IS}['\"]?[/~])|(?:client[_-]?)?secret(?:[_-]?(?:access[_-]?)?key)?"
    r"|(?:api|private|access|account|signing|encryption)[_-]?key|(?:access|refresh|auth|session|id)[_-]?token"
    rf"|token(?<!(?:pad|eos|bos|unk|sep|cls)_token)(?<!(?:mask|stop|next|page)_token)(?<![_-]token(?={_COUNT}))"
    rf"|(?:set-)?cookie|credentials?|authorization(?={_IS}['\"])"
    rf"|sig(?:nature)?(?:(?==[A-Za-z0-9%+/_-]{{10}})|(?=['\"]{_IS}['\"]))"
)
"""What a secret is called where a text names it. A directory, a count and a mark of a tokenizer are none."""
_PATTERN: Final = re.compile(
    rf"-----BEGIN [A-Z0-9 ]{{1,40}}-----(?:{_LINES}-----END [A-Z0-9 ]{{1,40}}-----"
    rf"|(?![ ]?[('\"`)]|[ ][a-z]{{1,15}}[ .,;:]){_LINES}(?:-----END [A-Z0-9 ]{{0,40}}-{{0,5}})?)"
    r"|(?P<userinfo>://[^/\s:@]*+:)[^\s/'\"]+(?=@)"
    r"|(?<![A-Za-z0-9])(?=[abceghiprstx])(?:"
    r"(?:sk[-_]|[pr]k_(?:live|test)_|gh[opsru]_|github_pat_|xox[abeoprs]-|xapp-|glpat-)[-_A-Za-z0-9]{12,}+"
    r"|hf_[A-Za-z0-9]{20,}+"
    r"|(?-i:(?:AKIA|ASIA|AIza)[-_A-Za-z0-9]{12,}+|eyJ[A-Za-z0-9_-]{10,1000}+\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]*+)"
    r"|(?P<scheme>(?<!_)(?:bearer|basic|token)\s++)[A-Za-z0-9._~+/=-]{8,}+"
    rf"|(?P<label>(?:{_LABELS}){_IS})"
    r"(?!['\"]?\[redacted\])"
    r"(?:'(?:[^'\\]++|\\.)++'?|\"(?:[^\"\\]++|\\.)++\"?|\{[^}]++\}?|\[[^\]]++\]?|[^\s'\"&,;)}\]]{3,}+)"
    rf"|(?P<header>authorization{_IS}(?:[a-z-]{{1,30}}+\s++)?+)"
    r"(?=[a-z._~+/=-]{0,200}+[0-9])[A-Za-z0-9._~+/=-]{8,}+)",
    re.IGNORECASE | re.DOTALL,
)
"""Most places of a text are passed by after one look: no word begins there, or not with a letter that any of these has.
No part of a text is read again from every place in it. Texts are cut before they get here: where the end of a key, a
quote or a bracket is missing, the end of the text is taken for it."""
_HINTS: Final = (
    "bearer", "basic", "token", "sk-", "sk_", "pk_", "rk_", "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat", "hf_",
    "xox", "xapp-", "glpat", "akia", "asia", "aiza", "eyj", "pass", "pwd", "secret", "key", "cookie", "credential",
    "authorization", "sig=", "signature", "-----begin",
)  # fmt: skip
"""Without any of these there is nothing to find, and most messages have none."""


def redact_text(text: str) -> str:
    """A message without what looks like a secret."""
    low = text.lower()
    if "@" in low and "://" in low:
        return _PATTERN.sub(_mask, text)
    for hint in _HINTS:
        if hint in low:
            return _PATTERN.sub(_mask, text)
    return text


def _mask(match: re.Match[str]) -> str:
    kept = match["scheme"] or match["header"] or match["label"] or match["userinfo"] or ""
    return f"{kept}{MASK}"


def _is_secret(name: str, item: Json) -> bool:
    """By its name. Most numbers are counts (max_tokens), every flag is a switch, and PWD is a directory in a shell."""
    if not item or isinstance(item, bool):
        return False
    if isinstance(item, str | dict | list) and _NAME.search(name) is not None:
        return True
    return _PASSWORD.search(name) is not None and not (isinstance(item, str) and item[0] in "/~")


def redact(value: Json) -> Json:
    """A JSON value for showing: fields named like secrets and texts that look like one are masked."""
    if isinstance(value, dict):
        return {name: MASK if _is_secret(str(name), item) else redact(item) for name, item in value.items()}
    if isinstance(value, list):
        return [redact(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value
