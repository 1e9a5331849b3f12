"""Generate the training text: short, simple stories by SmolLM2-135M-Instruct (Apache-2.0).

Prompts come from a seeded grammar of names, animals, places and things; the model continues them
with seeded top-k sampling. Batches are written one after another, so that a stopped run goes on
where it stopped. In ``models``: ``python -m training.generate_stories --out stories.txt``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from romsim_models.reference import FloatDecoder
from romsim_models.registry import open_model

__all__ = ["SEPARATOR", "generate_batch", "story_prompt"]

# Stands alone on a line between two stories.
SEPARATOR = "<|story|>"

# Tokens of the shortest run that a story may not hold twice: so small a model loops otherwise.
_REPEAT = 4


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


_NAMES = _listed(
    "Tom|Mia|Ben|Lily|Sam|Anna|Max|Lucy|Tim|Sara|Leo|Emma|Jack|Molly|Finn|Ella|Bob|Daisy|Sue|Joe"
)
_HEROES = _listed(
    "cat|dog|bird|fish|bear|fox|rabbit|mouse|duck|frog|horse|cow|pig|sheep|bee|owl|boy|girl"
)
_ADJECTIVES = _listed("little|big|happy|sad|brave|kind|shy|funny|clever|lazy|hungry|curious")
_PLACES = _listed(
    "in a garden|in a forest|on a farm|in a small house|by the sea|near a park|by a river"
    "|on a hill|near a school|by a lake|in a village|in a cave"
)
_THINGS = _listed(
    "a red ball|an old tree|a shiny stone|a blue hat|a big cake|a lost key|a small boat|a warm coat"
    "|a yellow flower|a magic box|a wooden toy|a sweet apple|a soft bed|a little star|a long rope"
    "|a white feather|a new friend|a baby bird|a hole|a book"
)


def story_prompt(random_source: random.Random) -> tuple[str, str]:
    """Draw one story's request, and the sentences with which the answer has to begin."""
    name, hero = random_source.choice(_NAMES), random_source.choice(_HEROES)
    adjective, place = random_source.choice(_ADJECTIVES), random_source.choice(_PLACES)
    thing = random_source.choice(_THINGS)
    article = "an" if adjective[0] in "aeiou" else "a"
    request = (
        f"<|im_start|>user\nWrite a short story for a small child about {article} {adjective} "
        f"{hero} named {name}. Use simple words.<|im_end|>\n<|im_start|>assistant\n"
    )
    opening = (
        f"Once upon a time, there was {article} {adjective} {hero} named {name}. {name} lived "
        f"{place}. One day, {name} found {thing}."
    )
    return request, opening


@torch.no_grad()
def generate_batch(
    decoder: FloatDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    n_tokens: int,
    temperature: float,
    top_k: int,
    eos_ids: Sequence[int],
    generator: torch.Generator,
) -> list[list[int]]:
    """Continue prompts of one length, sampling among the ``top_k`` most likely tokens.

    Returns
    -------
    list of list of int
        New tokens of each prompt, up to and without its end token.
    """
    length = len(prompts[0])
    cache = decoder.new_cache(batch=len(prompts), max_tokens=length + n_tokens)
    logits = decoder.forward([list(prompt) for prompt in prompts], cache=cache, last_only=True)
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    stories: list[list[int]] = [[] for _ in prompts]
    followers: list[dict[tuple[int, ...], list[int]]] = [{} for _ in prompts]
    logits = logits[:, -1]
    for index in range(n_tokens):
        for row, story in enumerate(stories):
            barred = followers[row].get(tuple(story[-_REPEAT + 1 :]))
            if barred:
                logits[row, barred] = -torch.inf
        values, tokens = logits.topk(top_k)
        drawn = torch.multinomial((values / temperature).softmax(-1), 1, generator=generator)
        next_tokens = tokens.gather(1, drawn)[:, 0]
        for row, token in enumerate(next_tokens.tolist()):
            if token in eos_ids:
                ended[row] = True
            elif not ended[row]:
                story = stories[row]
                if len(story) >= _REPEAT - 1:
                    followers[row].setdefault(tuple(story[-_REPEAT + 1 :]), []).append(token)
                story.append(token)
        # Stragglers cost as much as a whole batch: a story without an end by then is cut.
        if int(ended.sum()) * 8 >= 7 * len(prompts) or index + 1 == n_tokens:
            break
        logits = decoder.step(next_tokens, cache)
    return stories


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=180)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-k", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=40.0, help="stop after the batch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = open_model("smollm2")
    tokenizer = checkpoint.tokenizer()
    assert tokenizer is not None
    decoder = FloatDecoder(checkpoint, dtype=torch.bfloat16)
    started = time.monotonic()
    done = options.out.read_text("utf-8").count(f"{SEPARATOR}\n") if options.out.exists() else 0
    for batch in range(done // options.batch_size, options.batches):
        # Each batch has its own seeds, so that a run can go on; its prompts have one length.
        random_source = random.Random(f"{options.seed}/{batch}")
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + batch)
        prompts: dict[int, list[tuple[str, list[int]]]] = {}
        chosen: list[tuple[str, list[int]]] = []
        while len(chosen) < options.batch_size:
            request, opening = story_prompt(random_source)
            tokens = tokenizer.encode(request + opening, add_special=False)
            same = prompts.setdefault(len(tokens), [])
            same.append((opening, tokens))
            if len(same) == options.batch_size:
                chosen = same
        stories = generate_batch(
            decoder,
            [tokens for _, tokens in chosen],
            n_tokens=options.tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            eos_ids=checkpoint.spec.eos_ids,
            generator=generator,
        )
        text = "".join(
            f"{opening}{tokenizer.decode(story)}\n{SEPARATOR}\n"
            for (opening, _), story in zip(chosen, stories, strict=True)
        )
        with options.out.open("a", encoding="utf-8") as file:
            file.write(text)
        n_tokens = sum(map(len, stories))
        seconds = time.monotonic() - started
        print(f"batch {batch}: {n_tokens} tokens, {seconds:.0f} s so far", file=sys.stderr)
        if seconds > 60 * options.minutes:
            break


if __name__ == "__main__":
    _main()
