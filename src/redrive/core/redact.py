"""Secrets out of everything that is stored or shown besides the payload itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

Json = Any
"""As in core.job, which this module does not import: it needs the standard library only."""
MASK: Final = "[redacted]"
LEAST: Final = 4
"""Characters of a secret that is looked for in a text: shorter ones stand in ordinary words."""
_NAME: Final = re.compile(
    r"pass(word|wd|phrase)|(^|[_-])pw$|secret|token|(api|access|private)[_-]?key|authorization|credential|cookie"
    r"|signature",
    re.IGNORECASE,
)
_PASSWORD: Final = re.compile(r"(?:(?:^|[_-])pwd|pass(?:word|wd|phrase)|secret|api[_-]?key)$", re.IGNORECASE)
"""Whose value is a secret even where it is a number."""
_NAME_AND_VALUE: Final = (("name", "value"), ("Name", "Value"), ("key", "value"), ("Key", "Value"), ("header", "value"))
_LINES: Final = r"[^-]*(?:-(?!----(?:BEGIN|END) )[^-]*)*"
_IS: Final = r"(?:\\{0,7}['\"])?\s*[=:]\s*"
_COUNT: Final = rf"{_IS}['\"]?[0-9][0-9.,]*(?:[\s'\";)}}\]]|\Z)"
_PASSWORDS: Final = rf"pass(?:word|wd|phrase)|pwd?(?!{_IS}['\"]?[/~])"
_LABELS: Final = (
    rf"{_PASSWORDS}|(?:client[_-]?)?secret(?:[_-]?(?:access[_-]?)?key)?"
    r"|(?:api|private|access|account|signing|encryption)[_-]?key|(?:access|refresh|auth|session|id)[_-]?token"
    rf"|token(?<!(?:pad|eos|bos|unk|sep|cls)_token)(?<!(?:mask|stop|next|page)_token)(?<![_-]token(?={_COUNT}))"
    rf"|(?:set-)?cookie|(?:cookie|password|api[_-]?key)s(?={_IS}[{{\[])|credentials?|authorization(?={_IS}['\"])"
    rf"|sig(?:nature)?(?:(?==[A-Za-z0-9%+/_-]{{10}})|(?=['\"]{_IS}['\"]))"
)
"""What a secret is called where a text names it. A directory, a count and a mark of a tokenizer are none."""
_ENDINGS: Final = (
    rf"(?:{_PASSWORDS}|secret(?:[_-]?key)?|(?:api|access)[_-]?key)(?=\\{{0,7}}['\"]?\s*=|\\{{0,7}}['\"]\s*:)"
    rf"|(?-i:(?<=[A-Z0-9])(?:PASS(?:WORD|WD|PHRASE)|PWD(?!{_IS}['\"]?[/~])|SECRET|API_?KEY|TOKEN(?!{_COUNT})))(?={_IS})"
)
"""The same at the end of a longer word: PGPASSWORD=…, 'dbPassword': …; but `WrongPassword: …` is an error's name."""
_NAMED: Final = (
    r"(?:pass(?:word|wd|phrase)|secret(?:[_-]?key)?|token|(?:api|access|private)[_-]?key|credentials?|cookie)"
)
_SINGLE: Final = r"'(?=[^'\\]|\\.)[^'\\]*(?:\\.[^'\\]*)*"
_DOUBLE: Final = r"\"(?=[^\"\\]|\\.)[^\"\\]*(?:\\.[^\"\\]*)*"
_QUOTED: Final = rf"[bruf]{{0,2}}(?:{_SINGLE}'?|{_DOUBLE}\"?)"
_IN_PAIR: Final = rf"[bruf]{{0,2}}(?:{_SINGLE}(?:\Z|'(?:\Z|(?=\s*[\])])))|{_DOUBLE}(?:\Z|\"(?:\Z|(?=\s*[\])]))))"
"""A quoted text that a bracket closes. Where its quote is missing, the end of the text is taken for it."""


def _nested(opening: str, closing: str) -> str:
    """In brackets, with brackets inside, with brackets inside; empty ones hold nothing."""
    other, found = rf"[^\{opening}\{closing}]*", ""
    for _ in range(3):
        found = rf"\{opening}{other}{f'(?:{found}{other})*' if found else ''}\{closing}?"
    return rf"(?!\{opening}\s*\{closing}){found}"


_VALUE: Final = (
    r"(?!\\{0,7}['\"]?\[redacted\])(?!(?:none|null|true|false)(?:[\s'\"&,;)}\]]|\Z))(?:"
    rf"{_QUOTED}|(?P<escapes>\\{{1,7}})(?P<quote>['\"])(?!(?P=escapes)(?P=quote))"
    r"(?=.)[^\\]*(?:(?!(?<!\\)(?P=escapes)(?P=quote))\\[^\\]*)*(?:(?P=escapes)(?P=quote))?"
    rf"|{_nested('{', '}')}|{_nested('[', ']')}|[a-z_][a-z0-9_.]{{0,60}}\((?=['\"])[^)]+\)?"
    r"|(?!\\{1,7}['\"]|\{\s*\}|\[\s*\])[^\s'\"&,;)}\]]{3,})"
)
_HOST: Final = r"[0-9]{1,5}(?![\w!$%^&*+=~-])|[/:{<]|port\b"
"""What stands behind a host and a colon, where it is none of a name and a password."""
_WORD: Final = r"(?!://)[^\s'\"][^\s'\":]*(?::(?!//)[^\s'\":]*)*"
"""A password in a URL may hold a slash that nobody has escaped; another URL is no part of it."""
_SECRETS: Final = (
    r"(?=[-:<'\"])(?:"
    rf"-----BEGIN [A-Z0-9 ]{{1,40}}-----(?:{_LINES}-----END [A-Z0-9 ]{{1,40}}-----"
    rf"|(?![ ]?[('\"`)]|[ ][a-z]{{1,15}}[ .,;:]){_LINES}(?:-----END [A-Z0-9 ]{{0,40}}-{{0,5}})?)"
    r"|(?P<userinfo>://[^/\s:@]*:)[^\s/'\"]+(?=@)"
    r"|(?P<login>://)(?=[^/\s:@'\"]{0,200}?[0-9])[^/\s:@'\"]{20,}(?=@[\w\[])"
    rf"|(?P<address>://[^][/\s:@'\"?#&=,;(){{}}<>|]*:)(?!{_HOST})(?=[^\s'\"]{{3}})"
    rf"(?:{_WORD}(?=@[\w\[])|{_WORD}(?<!\[redacted\])\Z)"
    rf"|(?P<tag><(?=[a-z_])[\w:.-]{{0,60}}?{_NAMED}(?:\s[^<>]{{0,200}})?>(?:<!\[CDATA\[)?)(?!\s*(?:\[redacted\]|<|\Z))"
    r"(?:[^<]+(?=</)|[^<\s]+(?<!\[redacted\])\Z)"
    rf"|(?P<option>--(?=[a-z])[a-z0-9_-]{{0,40}}?{_NAMED}(?:['\"],\s*(?=['\"])|[ \t]+))(?!['\"]?(?:-|\[redacted\]))"
    rf"(?:{_QUOTED}|(?-i:(?=[^\s'\"]{{0,100}}?(?:[0-9@#$%^&*+=~]|[a-z][A-Z])))[^\s'\",;<>()\[\]{{}}|]{{4,}})"
    rf"|(?P<field>['\"](?:name|key|header)['\"]\s*:\s*['\"][\w-]{{0,40}}?(?:{_NAMED}|authorization)['\"],\s*"
    rf"['\"]value['\"]\s*:\s*){_QUOTED})"
    r"|(?<![A-Za-z0-9])(?=[abcdeghinprstwxy])(?:"
    r"(?:sk[-_]|[pr]k_(?:live|test)_|gh[opsru]_|github_pat_|xox[abeoprs]-|xapp-|glpat-|whsec_|ya29\.)"
    r"[-_A-Za-z0-9]{12,}"
    r"|(?:hf|npm)_[A-Za-z0-9]{20,}|(?-i:pypi-AgE|SG\.[-_A-Za-z0-9]{16,40}\.)[-_A-Za-z0-9]{16,}"
    r"|(?P<hook>hooks\.slack\.com/[a-z]{1,20}/|discord(?:app)?\.com/api/webhooks/[0-9]{1,30}/)[^\s'\"<>]{8,}"
    r"|(?-i:(?:AKIA|ASIA|AIza)[-_A-Za-z0-9]{12,}|eyJ[A-Za-z0-9_-]{10,1000}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)"
    r"|(?P<scheme>(?<!_)(?:bearer\s+|(?:basic|token)\s+(?!(?-i:[A-Z]?[a-z]+)\.?(?![\w.~+/=-]))))"
    r"[A-Za-z0-9._~+/=-]{8,}"
    rf"|(?P<cookie>(?:set-)?cookie{_IS})(?=[^\s=;,&'\"\\{{}}\[\]]{{1,200}}=)"
    r"[^\r\n'\"\\]*(?:(?:\\(?!['\"])|(?<==)\"[^\"\r\n]*\"?)[^\r\n'\"\\]*)*"
    rf"|(?P<header>authorization{_IS}(?:[a-z-]{{1,30}}\s+)?)"
    r"(?=[a-z._~+/=-]{0,200}[0-9])[A-Za-z0-9._~+/=-]{8,})"
    rf"|(?P<label>(?:(?<![A-Za-z0-9])(?=[aceiprst])(?:{_LABELS})|(?=[past])(?<=[A-Za-z0-9])(?:{_ENDINGS})){_IS}){_VALUE}"
    r"|(?<=[\[(])(?:(?<=\[[\[(])|(?<=[\])],[\[(])|(?<=[\])],\s[\[(]))"
    rf"(?P<pair>b?['\"][\w-]{{0,40}}?(?:{_NAMED}|authorization)['\"],\s*){_IN_PAIR}"
)
"""Most places of a text are passed by after one look: no word begins there, or not with a letter that any of these has.
No part of a text is read again from every place in it: what is repeated cannot begin what follows it, so that giving it
back is useless and short. Possessive repeats and atomic groups would say so, but Python 3.11.2 (Debian 12) matches them
wrongly and leaves secrets. Texts are cut before they get here: where the end of a key, a
quote, a bracket or a password in a URL is missing, the end of the text is taken for it."""
_CUT: Final = re.compile(rf"://[^/\s:@]*:(?!{_HOST})[^\s'\"]{{3,}}\Z")
"""A text that may end in half a URL."""
_HINTS: Final = (
    "bearer", "basic", "token", "sk-", "sk_", "pk_", "rk_", "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat", "hf_",
    "xox", "xapp-", "glpat", "whsec_", "npm_", "ya29.", "pypi-", "sg.", "hooks.slack", "webhooks/", "akia", "asia",
    "aiza", "eyj", "pass", "pw", "secret", "key", "cookie", "credential", "authorization", "sig=", "signature",
    "-----begin",
)  # fmt: skip
"""Without any of these there is nothing to find, and most messages have none."""
_KEPT: Final = (
    "label", "scheme", "userinfo", "login", "address", "header", "cookie", "tag", "option", "pair", "field", "hook",
)  # fmt: skip
"""What stands before a secret and is shown."""


@cache
def _compile() -> re.Pattern[str]:
    """Compile the pattern when a text is first looked at: that takes longer than many a program's other imports."""
    return re.compile(_SECRETS, re.IGNORECASE | re.DOTALL)


def redact_text(text: str) -> str:
    """A message without what looks like a secret."""
    low = text.lower()
    if "://" in low and ("@" in low or _CUT.match(low, low.rfind("://")) is not None):
        return _compile().sub(_mask, text)
    for hint in _HINTS:
        if hint in low:
            return _compile().sub(_mask, text)
    return text


def _mask(match: re.Match[str]) -> str:
    kept = next((match[name] for name in _KEPT if match[name]), "")
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
        named = _secret_value(value)
        return {
            name: MASK if name == named or _is_secret(str(name), item) else redact(item) for name, item in value.items()
        }
    if isinstance(value, list | tuple):  # a failure keeps its codes in one
        pairs = _are_pairs(value)
        return [[item[0], MASK] if pairs and _is_secret(item[0], item[1]) else redact(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_about(text: str, given: Json) -> str:
    """A text that may quote a JSON value, without what `redact` hides of that value."""
    for secret in sorted(set(_list_hidden(given, redact(given))), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return MASK.join(map(redact_text, text.split(MASK)))


def _list_hidden(given: Json, shown: Json) -> Iterator[str]:
    """The texts of a value that are not shown."""
    if isinstance(given, dict):
        for name, item in given.items():
            yield from _list_hidden(item, shown[name] if isinstance(shown, dict) else MASK)
    elif isinstance(given, list | tuple):
        for item, part in zip(given, shown if isinstance(shown, list) else [MASK] * len(given), strict=True):
            yield from _list_hidden(item, part)
    elif isinstance(given, str) and given != shown and len(given) >= LEAST:
        yield given


def _secret_value(given: dict[str, Json]) -> str | None:
    """Headers and variables are also written as {"name": …, "value": …}: the field that holds a secret so named."""
    for name, value in _NAME_AND_VALUE:
        if value in given and isinstance(given.get(name), str) and _is_secret(given[name], given[value]):
            return value
    return None


def _are_pairs(given: Sequence[Json]) -> bool:
    """[["X-Api-Key", …], …]; a list of two words may be one of names alone."""
    return all(isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in given)
