"""The settings of a run: its seeds, and that nothing is written to them."""

from __future__ import annotations

import dataclasses

import pytest
from all_settings import refusal

from diaster.config import AGENTS, METHODS, EvaluationConfig, ReplayConfig, RunConfig, build_config, parse_seeds


def test_configurations_cannot_be_written_to() -> None:
    kinds = [*METHODS.values(), *AGENTS.values()]
    for kind in (RunConfig, ReplayConfig, EvaluationConfig, *(entry.settings for entry in kinds)):
        config = kind()
        for field in dataclasses.fields(config):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(config, field.name, 1)


def test_seeds_are_a_count_or_a_list() -> None:
    for text, seeds in (
        ("5", (0, 1, 2, 3, 4)),
        ("1", (0,)),
        ("3,7,11", (3, 7, 11)),
        ("3,", (3,)),
        ("11,3", (11, 3)),
        (" 3 , 7 ", (3, 7)),
    ):
        assert parse_seeds(text) == seeds


def test_seeds_that_are_neither_are_refused() -> None:
    for text in ("", "0", "-2", "a", "3;7", "1.5", "3,x", "3 7"):
        assert "--seeds" in refusal(lambda text=text: parse_seeds(text))


def test_a_count_of_more_seeds_than_train_together_is_refused() -> None:
    assert len(build_config(seeds=10_000).seeds) == 10_000
    for seeds in (10_001, "10001"):
        assert "at most 10000 train together" in refusal(lambda seeds=seeds: build_config(seeds=seeds))
