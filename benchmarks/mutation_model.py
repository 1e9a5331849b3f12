"""A Verilated design with mutants in this process, driven as Amaranth's simulator is."""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import Shape, Value

from romsim_models.errors import SpecError
from romsim_rtl.mutants import CONTROL
from romsim_rtl.verilated import verilate

__all__ = ["Context", "HangError", "Model", "Port", "build_model"]

_MAIN = """
#include <cstring>
#include "verilated.h"
#include "V@TOP@.h"
static VerilatedContext* context;
static V@TOP@* top;
extern "C" void model_open(int mutant) {
  context = new VerilatedContext;
  context->randReset(2);
  context->randSeed(7);
  top = new V@TOP@{context};
  @ZERO@
  top->@CONTROL@ = mutant;
  @RESET@
  top->eval();
}
extern "C" void* model_port(int index) {
  void* const ports[] = { @PORTS@ };
  return ports[index];
}
extern "C" void model_settle() { top->eval(); }
extern "C" void model_tick() { @TICK@ }
"""
_TICK = "top->clk = 1; top->eval(); top->clk = 0; top->eval();"
_RESET = f"top->rst = 1; {_TICK} {_TICK} top->rst = 0;"


class HangError(AssertionError):
    """More cycles than the unharmed design takes many times over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of a component: its name in Verilog, whether it is an output, its shape."""

    name: str
    is_output: bool
    width: int
    is_signed: bool

    @property
    def size(self) -> int:
        """Bytes in the Verilated model."""
        for bits, size in ((8, 1), (16, 2), (32, 4), (64, 8)):
            if self.width <= bits:
                return size
        return 4 * -(-self.width // 32)

    @property
    def mangled(self) -> str:
        """Name of the member of the Verilated class."""
        return self.name.replace("__", "___05F")

    @classmethod
    def of(cls, name: str, value: Any, way: str) -> Port:
        """Describe a signal."""
        shape = Shape.cast(Value.cast(value).shape())
        return cls(name=name, is_output=way == "o", width=shape.width, is_signed=bool(shape.signed))


class Model:
    """The library; one instance of the design at a time, made by ``open``."""

    def __init__(self, library: Path, ports: Sequence[Port]) -> None:
        self.ports = {port.name: port for port in ports}
        self._index = {port.name: number for number, port in enumerate(ports)}
        self._library = ctypes.CDLL(str(library))
        self._library.model_port.restype = ctypes.c_void_p
        self.settle = self._library.model_settle
        self.tick = self._library.model_tick

    def open(self, mutant: int) -> None:
        """Begin with a mutant (0: none), after reset, registers without reset holding anything."""
        self._library.model_open(mutant)

    def address(self, name: str) -> int:
        """Address of a port's value."""
        return int(self._library.model_port(self._index[name]))


def build_model(
    verilog: Path, top: str, ports: Sequence[Port], folder: Path, *, has_clock: bool
) -> Model:
    """Verilate a design with mutants as a shared library."""
    main = folder / "model.cpp"
    table = ", ".join(f"&top->{port.mangled}" for port in ports)
    zero = " ".join(
        f"memset(&top->{port.mangled}, 0, {port.size});" for port in ports if not port.is_output
    )
    text = _MAIN.replace("@TOP@", top).replace("@CONTROL@", CONTROL).replace("@PORTS@", table)
    text = text.replace("@ZERO@", zero)
    text = text.replace("@RESET@", _RESET if has_clock else "")
    main.write_text(text.replace("@TICK@", _TICK if has_clock else "top->eval();"))
    build = verilate(
        [verilog],
        top,
        cpp=[main],
        opt="-O0",
        args=["-Wno-fatal", "-Wno-lint", "--x-initial", "unique", "--x-assign", "unique"],
        cflags=["-fPIC"],
        ldflags=["-shared"],
    )
    return Model(build.executable, ports)


class _Ticks:
    """What ``await context.tick()`` waits for."""

    def __init__(self, context: Context) -> None:
        self._context, self._count = context, 1

    def repeat(self, count: int) -> _Ticks:
        """Wait for several edges."""
        self._count = count
        return self

    def __await__(self) -> Generator[Any, None, None]:
        for _ in range(self._count):
            self._context.advance()
        yield from ()


class Context:
    """What a testbench is given: ``set``, ``get`` and ``tick`` on a Verilated model.

    Parameters
    ----------
    model
        An opened model.
    signals
        The component's signals by the name of their ports.
    limit
        Cycles after which the design is taken to hang.
    """

    def __init__(self, model: Model, signals: dict[str, Any], *, limit: int) -> None:
        self._model, self._limit = model, limit
        self._is_settled = True
        self.n_cycles = 0
        self._places: dict[int, tuple[Port, Any]] = {}
        for name, signal in signals.items():
            port, address = model.ports[name], model.address(name)
            raw = ctypes.c_char * port.size
            kinds = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
            kind = kinds[port.size] if port.width <= 64 else raw
            self._places[id(Value.cast(signal))] = (port, kind.from_address(address))

    def _place(self, signal: Any) -> tuple[Port, Any]:
        try:
            return self._places[id(Value.cast(signal))]
        except KeyError:
            raise SpecError(
                f"A testbench must read and set ports only, not {signal!r}; make it a port"
            ) from None

    def set(self, signal: Any, value: int) -> None:
        """Set an input."""
        port, place = self._place(signal)
        value = int(value) & ((1 << port.width) - 1)
        if port.width <= 64:
            place.value = value
        else:
            place.raw = value.to_bytes(port.size, "little")
        self._is_settled = False

    def get(self, signal: Any) -> int:
        """Read a port after everything has settled."""
        if not self._is_settled:
            self._model.settle()
            self._is_settled = True
        port, place = self._place(signal)
        value = place.value if port.width <= 64 else int.from_bytes(place.raw, "little")
        if port.is_signed and value >> (port.width - 1):
            value -= 1 << port.width
        return int(value)

    def tick(self) -> _Ticks:
        """Wait for the next edge."""
        return _Ticks(self)

    def advance(self) -> None:
        """Clock the design once."""
        self.n_cycles += 1
        if self.n_cycles > self._limit:
            raise HangError(f"the design takes more than {self._limit} cycles")
        if not self._is_settled:
            self._model.settle()
        self._model.tick()
        self._is_settled = True
