"""Random models on random targets, for properties that hold at every design point."""

from __future__ import annotations

import random
from dataclasses import replace

from romsim.design_point import DesignPoint
from romsim_compiler.formats import WeightFormat, parse_format
from romsim_compiler.target import Embedding, Formats, Power, Schedule, Target
from romsim_compiler.target_file import load_target
from romsim_models.shapes import TINY
from romsim_models.spec import ModelSpec

TECHNOLOGIES = ("asap7", "n7-compiler", "n6", "n5", "28nm", "sky130")


def random_spec(rng: random.Random) -> ModelSpec:
    heads = rng.choice([1, 2, 4, 6])
    spec = replace(
        TINY["tiny-int4"],
        dim=rng.choice([32, 64, 96, 160]),
        n_layers=rng.randint(1, 9),
        n_heads=heads,
        n_kv_heads=rng.choice([n for n in (1, 2, 3, 4, 6) if heads % n == 0]),
        head_dim=rng.choice([16, 32, 64]),
        hidden_dim=rng.choice([32, 96, 160, 352]),
        vocab_size=rng.choice([288, 512, 1000]),
        tie_embeddings=rng.random() < 0.5,
    )
    if rng.random() < 0.3:
        spec = replace(spec, arch="bitnet", activation="relu2", has_sub_norms=True)
    return spec


def random_target(rng: random.Random) -> Target:
    base = load_target("small")
    ternary = rng.random() < 0.3
    scale_group = rng.choice([32, 64])
    fp8 = rng.random() < 0.2
    number = "fp8_e4m3" if fp8 else "mxint8"
    return replace(
        base,
        technology=rng.choice(TECHNOLOGIES),
        executable=not fp8,
        clock_mhz=rng.choice([50.0, 333.0, 500.0, 1200.0]),
        array=replace(
            base.array,
            n_tiles=rng.choice([1, 2, 3, 4, 8, 17]),
            n_cells=rng.choice([1, 2, 4, 8]),
            rom_rows=rng.choice([64, 1000, 65536]),
            word_codes=rng.choice([64, 128, 192]),
            lane_bits=2 if ternary else rng.choice([1, 2, 3, 4, 8]),
            encoding="ternary" if ternary else "unsigned",
            scale_group=scale_group,
            scale_bits=rng.choice([0, 16]) if ternary else 16,
            min_bits=rng.choice([0, 16]),
        ),
        vector=replace(base.vector, n_lanes=rng.choice([32, 64, 128, 256])),
        attention=replace(
            base.attention,
            sram_kib=rng.choice([1, 16, 256]),
            word_elems=rng.choice([32, 64, 128]),
            heads_parallel=rng.choice([1, 2, 4]),
            attn_block=rng.choice([8, 16, 64]),
        ),
        formats=Formats(activation=number, kv=number, lora=number),
        network=replace(
            base.network, broadcast_cycles=rng.randint(0, 20), collect_cycles=rng.randint(0, 20)
        ),
        schedule=Schedule(
            n_inflight=rng.choice([1, 2, 3, 5]),
            n_slots=rng.choice([1, 4]),
            n_batch=rng.choice([1, 2]),
        ),
        power=Power(wake_cycles=rng.choice([0, 0, 1, 40, 700])),
        embedding=Embedding(
            input=rng.choice(["rom", "off-chip"]), head=rng.choice(["rom", "off-chip"])
        ),
    )


def random_weights(rng: random.Random, target: Target) -> WeightFormat:
    if target.array.scale_bits == 0:
        return parse_format("ternary")
    names = ["sym4", "sym2", "int8"] + (["int4", "int2"] if target.array.min_bits else [])
    name = f"{rng.choice(names)}g{rng.choice([64, 128])}"
    if target.array.encoding == "ternary" and rng.random() < 0.5:
        return parse_format("ternary")
    return parse_format(name)


def random_point(rng: random.Random) -> DesignPoint:
    target = random_target(rng)
    return DesignPoint.uniform(
        random_spec(rng),
        target,
        random_weights(rng, target),
        head=random_weights(rng, target),
    )
