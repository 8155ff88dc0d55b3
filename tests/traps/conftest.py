"""All trap cells of one world run in one launch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from torch.multiprocessing.spawn import ProcessException

from tests.execution.ranks import Result, run
from tests.traps.cells import cells

Ran = Callable[[int], list[dict[str, Result]]]


@pytest.fixture(scope="package")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """What each rank of a world of that many found, per cell."""

    @cache
    def launch(ranks: int) -> list[dict[str, Result]] | ProcessException:
        try:
            return run(tuple(cells(ranks).values()), ranks=ranks, directory=tmp_path_factory.mktemp(f"ranks{ranks}"))
        except ProcessException as error:  # kept, so that a broken world is not launched again for every test
            return error

    def of(ranks: int) -> list[dict[str, Result]]:
        found = launch(ranks)
        if isinstance(found, ProcessException):
            raise found
        return found

    return of
