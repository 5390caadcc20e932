"""Names the version of redrive, for modules that may not import the package itself."""

from typing import Final

VERSION: Final = "0.1.0"
