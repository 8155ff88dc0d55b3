"""The identity of a model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.ir.fingerprint import Row, fingerprint, first_difference, rows

row = st.builds(
    Row,
    fqn=st.text("abc.", min_size=1, max_size=6),
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    dtype=st.sampled_from(("float32", "bfloat16")),
    tie=st.text("abc.", min_size=1, max_size=6),
)
models = st.lists(row, max_size=5, unique_by=lambda row: row.fqn)


@given(models, st.randoms(use_true_random=False))
def test_order_does_not_matter(model: list[Row], random: object) -> None:
    """The order in which parameters are listed is no part of a model's identity."""
    assert fingerprint(model) == fingerprint(random.sample(model, len(model)))  # type: ignore[attr-defined]


@given(models, models)
def test_fingerprints_and_differences_agree(left: list[Row], right: list[Row]) -> None:
    """Two models have one fingerprint exactly where no difference is found."""
    assert (fingerprint(left) == fingerprint(right)) == (first_difference(left, right) == "")


def test_ties_are_named_after_the_first() -> None:
    """Equal identities are one parameter under the name that comes first."""
    found = rows([("embedding.weight", (12, 4), "float32", 7), ("norm.weight", (4,), "float32", 8), ("head.weight", (12, 4), "float32", 7)])
    assert ["embedding.weight", "norm.weight", "embedding.weight"] == [each.tie for each in found]
    assert "head.weight 12x4 float32 tied to embedding.weight" == str(found[2])


def test_a_lost_tie_is_a_difference() -> None:
    """A model whose head is no longer tied is another model, and the message says what differs."""
    tied = rows([("e", (2,), "float32", 1), ("h", (2,), "float32", 1)])
    loose = rows([("e", (2,), "float32", 1), ("h", (2,), "float32", 2)])
    assert fingerprint(tied) != fingerprint(loose)
    assert "h: the plan has h 2 float32 tied to e, the model has h 2 float32" == first_difference(tied, loose)
    assert "e: the plan has no such parameter, the model has e 2 float32" == first_difference([], loose[:1])


def test_text_of_a_fingerprint() -> None:
    """It names its digest, and is the same on every machine."""
    assert "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" == fingerprint([])
