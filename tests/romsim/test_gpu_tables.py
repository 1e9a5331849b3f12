from __future__ import annotations

import re
from importlib import resources

import pytest

from romsim.gpu_tables import (
    find_gpu,
    gpus,
    launch_time,
    measured_rates,
    parse_gpus,
    usual_fraction,
)
from romsim_models.errors import SpecError

TEXT = (resources.files("romsim") / "tables" / "gpus.toml").read_text()


def test_the_parts_of_the_comparison_are_there() -> None:
    assert [gpu.name for gpu in gpus()] == [
        "A100",
        "H100",
        "H200",
        "B200",
        "RTX 4090",
        "Jetson Orin",
        "Jetson Thor",
    ]
    assert all(gpu.source and gpu.grade for gpu in gpus())


@pytest.mark.parametrize("name", ["RTX 4090", "rtx4090", "rtx-4090", "RTX_4090"])
def test_part_is_found_however_it_is_written(name: str) -> None:
    assert find_gpu(name).bandwidth_gb_s == 1008


def test_unknown_part_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        SpecError,
        match=r"^GPU must be one of A100, H100, H200, B200, RTX 4090, Jetson Orin, Jetson Thor, "
        r"not 'H300'; did you mean 'H[12]00'\?$",
    ):
        find_gpu("H300")


def test_published_rates_have_framework_format_and_source() -> None:
    rates = measured_rates()
    assert len(rates) >= 25
    for one in rates:
        assert one.framework
        assert one.format
        assert one.source
        assert one.confidence in ("published", "measured", "secondary", "derived", "unverified")
        assert one.confidence == "unverified" or "unverified" not in one.source


def test_shares_that_the_published_rates_imply() -> None:
    shares = {
        (r.part, r.model, r.format, r.context): r.fraction
        for r in measured_rates()
        if r.fraction is not None
    }
    assert shares["RTX 4090", "Llama-3.2-3B", "4-bit", 256] == pytest.approx(0.39, abs=0.005)
    assert shares["RTX 4090", "Llama-3-8B", "Q4_K_M", 1024] == pytest.approx(0.62, abs=0.005)
    assert shares["RTX 4090", "Llama-3-8B", "F16", 1024] == pytest.approx(0.87, abs=0.005)
    assert max(shares.values()) < 0.95


def test_usual_share_grows_with_the_bytes_of_a_token() -> None:
    for gpu in gpus():
        shares = [usual_fraction(gpu, gb) for gb in (0.1, 1.0, 3.0, 5.0, 20.0)]
        mids = [share.mid for share in shares]
        assert mids == sorted(mids)
        assert all(0 < s.low <= s.mid <= s.high <= 1 and s.source for s in shares)


def test_least_time_of_a_layer_has_a_source() -> None:
    fact = launch_time()
    assert 0 < fact.low <= fact.mid <= fact.high
    assert fact.unit == "us/layer"
    assert fact.grade == "assumed"


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"^\[sources\]$", "[sources", r"g\.toml must be TOML: .*"),
        (
            r"^bandwidth_gb_s = 2039$",
            "bandwidth = 2039",
            r"g\.toml: gpus\.0\.bandwidth_gb_s must be valid: field required",
        ),
        (
            r"^bandwidth_gb_s = 2039$",
            "bandwidth_gb_s = -1",
            r"g\.toml: gpus\.0\.bandwidth_gb_s must be valid: input should be greater than 0",
        ),
        (
            r'^source = "memory"$',
            'source = "hearsay"',
            r"g\.toml: source must be one of spec-table, .*, luo, not 'hearsay'; add it to "
            r"\[sources\]",
        ),
    ],
)
def test_wrong_file_is_refused(pattern: str, replacement: str, message: str) -> None:
    text, n = re.subn(pattern, replacement, TEXT, count=1, flags=re.MULTILINE)
    assert n == 1
    with pytest.raises(SpecError, match=rf"^{message}$"):
        parse_gpus(text, "g.toml")


def test_parts_with_a_figure_from_memory_are_graded_assumed() -> None:
    assert all(gpu.grade == "assumed" for gpu in gpus() if "unverified" in gpu.source)
