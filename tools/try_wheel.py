"""Tries what `./dev build` has built as a user would: in empty environments, outside the repository.

`python -m tools.try_wheel dist` installs the wheel alone and runs the demo with it, then the source archive, and the
wheel with each extra. Each gets a virtual environment of its own, which is removed afterwards.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = {
    "mcp": "import mcp",
    "nats": "import nats, nkeys",
    "notify": "import apprise",
    "otel": "import opentelemetry.trace",
    "postgres": "import psycopg",
    "serve": "import jinja2, starlette, uvicorn",
    "all": "import mcp, nats, apprise, psycopg, uvicorn",
}
"""What must be there after an extra was installed."""


def main() -> None:
    (folder,) = (Path(argument).resolve() for argument in sys.argv[1:])
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if missing := extras.keys() - NEEDED.keys():
        raise SystemExit(f"tools/try_wheel.py does not know what these extras bring: {', '.join(sorted(missing))}")
    tried("the wheel alone", str(wheel), [["-m", "redrive", "--version"], ["-m", "redrive", "demo"]])
    tried("the source archive", str(archive), [["-m", "redrive", "--version"]])
    for extra in extras:
        tried(f"the wheel with [{extra}]", f"{wheel}[{extra}]", [["-c", f"import redrive; {NEEDED[extra]}"]])


def tried(what: str, requirement: str, commands: list[list[str]]) -> None:
    """Install into an empty environment and run these, in a folder that has nothing of the repository."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="redrive-wheel-") as folder:
        run([sys.executable, "-m", "venv", f"{folder}/venv"], folder)
        python = f"{folder}/venv/bin/python"
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement], folder)
        for command in commands:
            run([python, *command], folder)
    print(f"{what:<30} ok {time.monotonic() - began:5.0f} s", flush=True)


def run(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
