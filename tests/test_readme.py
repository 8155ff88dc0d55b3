"""The README's programs and commands are run as they stand; `make` targets exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
PROGRAMS = {match[1]: text for kind, text in BLOCKS if kind == "python" and (match := re.match(r"# (\w+\.py)\n", text))}
SHELL = [text for kind, text in BLOCKS if kind == "sh"]
COMMANDS = [text for text in SHELL if not text.startswith("make ")]


def marked(text: str) -> object:
    marks = [pytest.mark.slow, *([pytest.mark.distributed] if "torchrun" in text else [])]
    return pytest.param(text, marks=marks, id=text.splitlines()[-1])


@pytest.mark.parametrize("text", [marked(text) for text in COMMANDS])
def test_commands_run(text: str, tmp_path: Path) -> None:
    """Every block of commands, one after the other, beside the README's programs and the benchmarks."""
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    for line in text.splitlines():
        done = subprocess.run(
            line,
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == done.returncode, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def test_make_targets_exist() -> None:
    """What the README tells to make can be made."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    told = {line.split()[1] for text in SHELL if text.startswith("make ") for line in text.splitlines()}
    assert {"demo", "test", "quick", "lint"} <= told <= targets


def test_linked_files_exist() -> None:
    """No link inside the repository is dead."""
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [] == [link for link in links if not (ROOT / link).exists()]


def test_programs_are_there() -> None:
    """The README shows a model file and a training program."""
    assert {"model.py", "train.py"} == PROGRAMS.keys()
