from __future__ import annotations

from envweave.examples.plots import ASCII_BLOCKS, BLOCKS, blocks_for, moving_average, sparkline


def test_a_moving_average_means_fewer_values_at_the_start():
    assert moving_average([1, 3, 5, 7], 2).tolist() == [1, 2, 4, 6]


def test_a_sparkline_spans_low_to_high_and_no_more_than_its_width():
    assert sparkline([0, 1, 2], low=0, high=1) == "▁██"
    assert len(sparkline(range(1000), low=0, high=1000, width=30)) == 30
    assert sparkline([], low=0, high=1) == ""


def test_a_terminal_without_blocks_gets_ascii():
    assert blocks_for("ascii") == ASCII_BLOCKS
    assert blocks_for(None) == ASCII_BLOCKS
    assert blocks_for("utf-8") == BLOCKS
