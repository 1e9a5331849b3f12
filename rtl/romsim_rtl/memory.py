"""Memories and shared modules: one seam between simulation in Amaranth and emitted Verilog.

Elaborated without a platform, the memories are Amaranth's own. Elaborated for `VerilogPlatform`
they are instances of the behavioural macros in ``verilog/``, which a foundry's macros replace, and
a module that a unit needs many times is emitted once and instantiated by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Cat, ClockSignal, Instance, Module, ResetSignal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from romsim_models.errors import SpecError

__all__ = ["Rom", "Sram", "VerilogPlatform", "address_bits", "replicate"]


def address_bits(depth: int) -> int:
    """Width of an address of ``depth`` words, at least one bit."""
    return max(1, (depth - 1).bit_length())


class Sram(wiring.Component):
    """SRAM with one write port with a lane mask, and one read port with a registered output.

    Parameters
    ----------
    depth
        Number of words.
    n_lanes, lane_bits
        Lanes of a word and bits of a lane.

    Members
    -------
    w_en, w_addr, w_mask, w_data
        Write of the lanes in the mask at the end of the cycle.
    r_en, r_addr
        Read; without ``r_en`` the output stays.
    r_data
        The word, one cycle after its address; the old word if it is written in that cycle.
    """

    def __init__(self, *, depth: int, n_lanes: int, lane_bits: int) -> None:
        for name, value in (("depth", depth), ("n_lanes", n_lanes), ("lane_bits", lane_bits)):
            if not isinstance(value, int) or value < 1:
                raise SpecError(f"SRAM {name} must be a positive integer, not {value!r}")
        self.depth, self.n_lanes, self.lane_bits = depth, n_lanes, lane_bits
        width = n_lanes * lane_bits
        super().__init__(
            {
                "w_en": In(1),
                "w_addr": In(address_bits(depth)),
                "w_mask": In(n_lanes),
                "w_data": In(width),
                "r_en": In(1),
                "r_addr": In(address_bits(depth)),
                "r_data": Out(width),
            }
        )

    def lanes(self, *, is_signed: bool = True) -> list[Any]:
        """Lanes of the output, lane 0 in the least significant bits."""
        parts = [self.r_data.word_select(lane, self.lane_bits) for lane in range(self.n_lanes)]
        return [part.as_signed() if is_signed else part for part in parts]

    def elaborate(self, platform: Any) -> Module:
        """Build Amaranth's memory or an instance of the macro."""
        m = Module()
        if hasattr(platform, "get_sram"):
            m.submodules.macro = platform.get_sram(self)
            return m
        memory = Memory(shape=unsigned(len(self.w_data)), depth=self.depth, init=[])
        m.submodules.memory = memory
        write = memory.write_port(granularity=self.lane_bits)
        read = memory.read_port()
        m.d.comb += [
            write.addr.eq(self.w_addr),
            write.data.eq(self.w_data),
            write.en.eq(Cat(bit & self.w_en for bit in self.w_mask)),
            read.addr.eq(self.r_addr),
            read.en.eq(self.r_en),
            self.r_data.eq(read.data),
        ]
        return m


class Rom(wiring.Component):
    """Mask ROM with one registered read port.

    Parameters
    ----------
    depth, width
        Words and bits of a word.
    file
        Plain name of the image: one word a line, in hexadecimal.
    init
        Contents for simulation in Amaranth; never part of emitted Verilog.

    Members
    -------
    r_en, r_addr
        Read; without ``r_en`` the output stays.
    r_data
        The word, one cycle after its address.
    """

    def __init__(self, *, depth: int, width: int, file: str, init: Sequence[int] = ()) -> None:
        for name, value in (("depth", depth), ("width", width)):
            if not isinstance(value, int) or value < 1:
                raise SpecError(f"ROM {name} must be a positive integer, not {value!r}")
        self.depth, self.width, self.file, self.init = depth, width, file, tuple(init)
        super().__init__(
            {
                "r_en": In(1),
                "r_addr": In(address_bits(depth)),
                "r_data": Out(width),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        """Build Amaranth's memory or an instance of the macro."""
        m = Module()
        if hasattr(platform, "get_rom"):
            m.submodules.macro = platform.get_rom(self)
            return m
        memory = Memory(shape=unsigned(self.width), depth=self.depth, init=self.init)
        m.submodules.memory = memory
        read = memory.read_port()
        m.d.comb += [
            read.addr.eq(self.r_addr),
            read.en.eq(self.r_en),
            self.r_data.eq(read.data),
        ]
        return m


class VerilogPlatform:
    """What ``elaborate`` is given when Verilog is emitted.

    After a conversion ``shared`` holds the components that were instantiated by name and must be
    converted as modules of their own (each with the same platform, until nothing is new).
    """

    def __init__(self) -> None:
        self.shared: dict[str, Any] = {}

    def get_sram(self, sram: Sram) -> Instance:
        """Instantiate ``verilog/romsim_sram.v``."""
        return Instance(
            "romsim_sram",
            p_DEPTH=sram.depth,
            p_ADDR_BITS=address_bits(sram.depth),
            p_LANES=sram.n_lanes,
            p_LANE_BITS=sram.lane_bits,
            i_clk=ClockSignal("sync"),
            i_w_en=sram.w_en,
            i_w_addr=sram.w_addr,
            i_w_mask=sram.w_mask,
            i_w_data=sram.w_data,
            i_r_en=sram.r_en,
            i_r_addr=sram.r_addr,
            o_r_data=sram.r_data,
        )

    def get_rom(self, rom: Rom) -> Instance:
        """Instantiate ``verilog/romsim_rom.v``."""
        return Instance(
            "romsim_rom",
            p_DEPTH=rom.depth,
            p_ADDR_BITS=address_bits(rom.depth),
            p_WIDTH=rom.width,
            p_FILE=rom.file,
            i_clk=ClockSignal("sync"),
            i_r_en=rom.r_en,
            i_r_addr=rom.r_addr,
            o_r_data=rom.r_data,
        )


def replicate(
    m: Module,
    platform: Any,
    name: str,
    module_name: str,
    build: Callable[[], Any],
    count: int,
    *,
    domain: str = "sync",
) -> list[Any]:
    """Put ``count`` copies of a component into a module.

    Parameters
    ----------
    name
        Prefix of the instances' names.
    module_name
        Name of the Verilog module; the same name must always mean the same component.
    build
        Makes the component.
    domain
        Clock domain of the copies, where they are emitted.

    Returns
    -------
    list
        Interfaces of the copies: the components themselves in Amaranth's simulator.
    """
    if not isinstance(platform, VerilogPlatform):
        copies = [build() for _ in range(count)]
        for index, copy in enumerate(copies):
            m.submodules[f"{name}{index}"] = copy
        return copies
    if module_name not in platform.shared:
        platform.shared[module_name] = build()
    signature = platform.shared[module_name].signature
    faces = []
    for index in range(count):
        face = signature.create(path=(f"{name}{index}",))
        ports: dict[str, Any] = {"i_clk": ClockSignal(domain), "i_rst": ResetSignal(domain)}
        for path, member, value in signature.flatten(face):
            direction = "i" if member.flow == wiring.In else "o"
            ports[f"{direction}_{'__'.join(map(str, path))}"] = value
        m.submodules[f"{name}{index}"] = Instance(module_name, **ports)
        faces.append(face)
    return faces
