"""An example content system for the examples: it takes its time, remembers what it has and can be asked for it.

It is one file, posted.log, so that it outlives the program. CMS_SECONDS is how long it takes to answer; CMS_TOKEN is
what it is shown, and "expired" is refused.
"""

import asyncio
import os
from pathlib import Path

POSTED = Path("posted.log")


class CmsError(Exception):
    """The CMS said no."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(f"{status_code} {message}")
        self.status_code = status_code


async def post(slug: str, text: str, key: str) -> str:
    """Put an article online. It is online before the answer is on its way back, as everywhere."""
    if os.environ.get("CMS_TOKEN") == "expired":
        raise CmsError(401, "token expired")
    with POSTED.open("a", encoding="utf-8") as file:
        file.write(f"{slug} {text}\n")
    await asyncio.sleep(float(os.environ.get("CMS_SECONDS", "0")))
    return f"https://cms.example/{slug}"


async def find(slug: str) -> str | None:
    """Where the article is; None if there is none."""
    lines = POSTED.read_text(encoding="utf-8").splitlines() if POSTED.exists() else []
    return f"https://cms.example/{slug}" if any(line.startswith(f"{slug} ") for line in lines) else None
