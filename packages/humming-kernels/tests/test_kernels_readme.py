"""The README of humming-kernels: every example in it is run as it stands, and what it names exists.

Run by pytest.
Assumes that `...` in an expected output stands for text that does not matter there.
"""

import doctest
import re
from importlib import resources
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_python_examples():
    failures, tests = doctest.testfile(
        str(README), module_relative=False, encoding="utf-8", optionflags=doctest.ELLIPSIS
    )
    assert failures == 0 and tests > 20


def test_the_example_is_short():
    """Compose and print in fifteen lines."""
    first = README.read_text(encoding="utf-8").split("```python")[1].split("print(")[0]
    assert sum(line.startswith((">>>", "...")) for line in first.splitlines()) < 15


def test_rooms_and_files_exist():
    """The reading order names every room, and files that are there."""
    root = resources.files("humming_kernels").joinpath("include", "humming")
    rows = re.findall(r"^\| `(\w+)/` \| ([^|]+) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert {room for room, _ in rows} == {entry.name for entry in root.iterdir() if entry.is_dir()}
    for room, files in rows:
        for name in re.findall(r"`(\w+)`", files):
            assert root.joinpath(room, f"{name}.cuh").is_file(), f"{room}/{name}"
