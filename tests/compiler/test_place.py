import re
from dataclasses import replace

import pytest

from romsim_compiler.formats import SHIPPED_FORMATS
from romsim_compiler.groups import build_groups
from romsim_compiler.place import Placement, check_placement, place
from romsim_compiler.target_file import load_target
from romsim_models.errors import CapacityError
from romsim_models.shapes import SHAPES, TINY

Q4 = SHIPPED_FORMATS["q4_1"]


def test_groups_follow_one_another_without_gap_or_overlap() -> None:
    target = load_target("small")
    placement = place(build_groups(TINY["tiny-int4"], lambda _: Q4), target)
    check_placement(placement, target)
    end = 0
    for _, mapping, base in placement.entries:
        assert base == end
        end += mapping.n_words
    assert end == placement.n_words


def test_model_larger_than_the_rom_is_refused_with_sizes_and_remedy() -> None:
    target = load_target("small")
    with pytest.raises(
        CapacityError,
        match=(
            r"^Model must fit the ROM of target 'small': it needs \d+ bytes \(\d+ words in each of "
            r"4 cells\), not the 5242880 available \(65536 words\); largest: head 17\.7 MB, "
            r"L0\.gu 1\.11 MB, L1\.gu 1\.11 MB; raise array\.rom_rows to \d+, use fewer bits, "
            r"or let --fit size the chip$"
        ),
    ):
        place(build_groups(SHAPES["smollm2"], lambda _: Q4), target)


def test_overlap_and_overrun_are_found() -> None:
    target = load_target("small")
    placement = place(build_groups(TINY["tiny-int4"], lambda _: Q4), target)
    (g0, m0, _), (g1, m1, b1), *rest = placement.entries
    overlapping = Placement(
        entries=((g0, m0, 0), (g1, m1, b1 - 1), *rest), n_words=placement.n_words
    )
    sentence = f"Group 'L0.o' must start at word {b1} or later, not {b1 - 1}: it overlaps L0.qkv"
    with pytest.raises(CapacityError, match=f"^{re.escape(sentence)}$"):
        check_placement(overlapping, target)
    tight = replace(target, array=replace(target.array, rom_rows=placement.n_words - 1))
    sentence = f"Group 'head' must end by word {placement.n_words - 1}, not {placement.n_words}"
    with pytest.raises(CapacityError, match=f"^{re.escape(sentence)}$"):
        check_placement(placement, tight)
