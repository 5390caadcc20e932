"""A test that hangs ends its run: no run waits for it for ever."""

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import LONGEST
from tests.support import DEADLINE, closed

ROOT = Path(__file__).parents[1]
PER_TEST = 240.0


@pytest.mark.behaviour("T-M4a")
def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert str(pytestconfig.getini("timeout")) == f"{PER_TEST:g}"
    assert pytestconfig.getini("timeout_method") == "thread"
    assert float(pytestconfig.getini("faulthandler_timeout")) < PER_TEST < LONGEST


@pytest.mark.behaviour("T-M4a")
@pytest.mark.parametrize("place", ["test", "teardown"])
def test_a_test_that_hangs_ends_its_run_and_is_named(tmp_path: Path, place: str) -> None:
    """It hangs as a browser does: the event loop waits for an answer that does not come. What comes after it runs."""
    hanging = """
        import asyncio, pytest

        @pytest.fixture
        async def one():
            yield
            await forever("teardown")

        async def forever(place):
            if place == PLACE:
                await asyncio.Event().wait()

        async def test_that_hangs(one):
            await forever("test")

        def test_behind_it():
            pass
    """
    file = tmp_path / "test_hanging.py"
    file.write_text(textwrap.dedent(hanging).replace("PLACE", repr(place)), encoding="utf-8")
    words = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", str(file)]
    words += ["--timeout", "2", "-o", "faulthandler_timeout=1", "-n", "1"]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, timeout=DEADLINE * 3, check=False
    )
    assert child.returncode == 1
    assert "::test_that_hangs" in child.stdout, "the test that hangs is not named"
    assert "1 failed" in child.stdout and " passed" in child.stdout
    assert "Timeout (" in child.stderr and "most recent call first" in child.stderr, "its threads are not shown"


@pytest.mark.behaviour("T-M4a")
def test_the_long_run_has_a_longer_limit(tmp_path: Path) -> None:
    """Asked in a run of its own, with this suite's conftest."""
    asks = "from tests.conftest import LONGEST\n"
    asks += "def test_limit(pytestconfig):\n    assert pytestconfig.getoption('--timeout') == LONGEST\n"
    file = tmp_path / "test_limit.py"
    file.write_text(asks, encoding="utf-8")
    words = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "tests.conftest", "--long"]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE * 3, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr


@pytest.mark.behaviour("T-M4b")
async def test_what_does_not_close_is_named() -> None:
    with pytest.raises(AssertionError, match="the browser did not close"):
        await closed("the browser", asyncio.Event().wait(), within=0.01)
