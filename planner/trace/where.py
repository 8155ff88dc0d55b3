"""Which line of the user's code an exception came from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import torch

_OURS = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib"))
_TORCH = Path(torch.__file__).resolve().parent
_LONGEST = 240


def user_line(error: BaseException) -> str:
    """`model.py:12`: the innermost frame of the traceback in the user's own files, or else in an installed library other than torch;
    empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    outside = [frame for frame in frames if not _within(frame.filename, (_OURS, _TORCH))]
    own = [frame for frame in outside if not _within(frame.filename, _LIBRARIES)]
    for frame in reversed(own or outside):
        return f"{Path(frame.filename).name}:{frame.lineno}"
    return ""


def message_of(error: BaseException) -> str:
    """One line: the type of the exception and the first line of its text, shortened."""
    lines = [line.strip() for line in _text(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # an exception of the user's may not even have a text
        return f"(its text cannot be read: {type(second).__name__})"


def _within(filename: str, folders: tuple[Path, ...]) -> bool:
    path = Path(filename).resolve()
    return any(folder in path.parents for folder in folders)
