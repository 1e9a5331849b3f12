from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import llama_cpp
from benchmarks.llama_cpp import compare_decoding, float_decoder, main, time_steps, to_text
from romsim_models import registry
from romsim_models.errors import FormatError, SpecError

torch = pytest.importorskip("torch", reason="the float decoder needs torch")


def count_up(prompt: Sequence[int]) -> Iterator[int]:
    return itertools.count(prompt[-1] + 1)


class FakeServer:
    """Answers as xllamacpp's server does, at 40 tokens/s."""

    def __init__(self, *, lost: int = 0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.lost = lost

    def handle_completions(self, request: dict[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        n_tokens = request["n_predict"] - self.lost
        return {
            "timings": {"predicted_n": n_tokens, "predicted_ms": 25.0 * (n_tokens - 1)},
            "choices": [{"text": "a text"}],
        }


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()

    @contextlib.contextmanager
    def serve(model: Path, *, n_threads: int, context: int) -> Iterator[FakeServer]:
        yield fake

    tiny = registry.open_model("tiny-int4")
    monkeypatch.setattr(llama_cpp, "_llama_server", serve)
    monkeypatch.setattr(registry, "open_model", lambda _: tiny)
    return fake


def test_only_steps_after_the_first_token_are_timed() -> None:
    # The clock stands still but for the engine's steps of one second, of 100 for the first token.
    now = [0.0]

    def decode(prompt: Sequence[int]) -> Iterator[int]:
        now[0] += 100
        for token in itertools.count(7):
            yield token
            now[0] += 1

    seconds, tokens = time_steps(decode, [1], 5, clock=lambda: now[0])
    assert seconds == 5
    assert tokens == [7, 8, 9, 10, 11, 12]


def test_engine_that_stops_early_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^engine must give 6 tokens, not 2$"):
        time_steps(lambda prompt: iter([1, 2]), [1], 5, clock=lambda: 0.0)


def test_float_decoder_continues_as_its_own_generate_does() -> None:
    checkpoint = registry.open_model("tiny-int4")
    prompt = [1, 5, 9]
    decode = float_decoder(checkpoint, n_threads=1, max_tokens=16)
    made = list(itertools.islice(decode(prompt), 8))
    from romsim_models.reference import FloatDecoder

    assert made == FloatDecoder(checkpoint).generate(prompt, n_tokens=8, eos_ids=())


def test_result_holds_every_engine_and_the_simulators_ratios(server: FakeServer) -> None:
    result = compare_decoding(
        Path("tiny.gguf"), "ab", n_tokens=3, n_threads=1, n_turns=2, simulators={"chip": count_up}
    )
    assert list(result["engines"]) == ["llama.cpp", "torch float32", "chip"]
    assert result["engines"]["llama.cpp"] == {
        "tokens_per_s": 40.0,
        "turns": [40.0, 40.0],
        "text": "a text",
    }
    assert set(result["ratios"]) == {"chip"}
    rates = {name: engine["tokens_per_s"] for name, engine in result["engines"].items()}
    assert result["ratios"]["chip"] == {
        "llama.cpp": rates["chip"] / rates["llama.cpp"],
        "torch float32": rates["chip"] / rates["torch float32"],
    }
    assert json.loads(json.dumps(result)) == result
    # one warm-up and two turns, each with the prompt's tokens and not its text
    assert [request["n_predict"] for request in server.requests] == [4, 4, 4]
    assert all(len(request["prompt"]) == result["n_prompt_tokens"] for request in server.requests)


def test_table_names_every_rate_and_ratio(server: FakeServer) -> None:
    result = compare_decoding(Path("tiny.gguf"), "ab", n_tokens=3, n_threads=1, n_turns=1)
    text = to_text(result)
    assert re.search(r"^  llama\.cpp +40\.00 tokens/s  \(40\.00\)$", text, re.M)
    assert re.search(r"^  torch float32 / llama\.cpp: \d+\.\d\d$", text, re.M)
    assert "median of 1 turns of 3 decode steps, 1 threads" in text


def test_llama_cpp_that_stops_early_is_refused(server: FakeServer) -> None:
    server.lost = 1
    with pytest.raises(SpecError, match=r"^llama\.cpp must give 4 tokens, not 3$"):
        compare_decoding(Path("tiny.gguf"), "ab", n_tokens=3, n_threads=1)


@pytest.mark.parametrize("name", ["n_tokens", "n_threads", "n_turns"])
def test_number_below_one_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=rf"^{name} must be 1 or more, not 0$"):
        compare_decoding(Path("tiny.gguf"), "ab", **{name: 0})  # type: ignore[arg-type]


def test_missing_model_ends_the_command_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("ROMSIM_CACHE", str(tmp_path))
    with pytest.raises(FormatError) as caught:
        registry.find("smollm2")
    assert main(["--model", "smollm2"]) == 2
    assert capsys.readouterr().err == f"{caught.value}\n"


@pytest.mark.slow
def test_real_engines_tell_the_same_story() -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp is an oracle, of the extra [oracle]")
    result = compare_decoding(registry.find("smollm2"), llama_cpp.PROMPT, n_tokens=12, n_turns=1)
    texts = [engine["text"] for engine in result["engines"].values()]
    assert texts[0] == texts[1]
    assert texts[0].startswith(" loved to play with her toys.")
    assert all(engine["tokens_per_s"] > 0 for engine in result["engines"].values())
