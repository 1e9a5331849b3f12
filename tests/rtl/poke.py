"""Drive a Verilated component from a script: a C++ main generated from its ports."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from romsim_rtl.gated_verilog import write_verilog
from romsim_rtl.memory import VerilogPlatform
from romsim_rtl.verilated import verilate

VERILOG = Path(__file__).resolve().parents[2] / "rtl" / "romsim_rtl" / "verilog"

_MAIN = r"""
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include "verilated.h"
#include "V@TOP@.h"

struct Port { void* at; unsigned bytes; };

static uint32_t word(FILE* f) {
  uint32_t v;
  if (fread(&v, 4, 1, f) != 1) std::exit(3);
  return v;
}

int main(int argc, char** argv) {
  VerilatedContext context;
  context.commandArgs(argc, argv);
  context.randReset(@RESET@);
  context.randSeed(7);
  V@TOP@ top{&context};
  const std::vector<Port> ports = { @PORTS@ };
  FILE* in = fopen(argv[1], "rb");
  FILE* out = fopen(argv[2], "wb");
  if (!in || !out) return 2;
  uint64_t cycles = 0;
  double seconds = 0;
  auto tick = [&]() { top.clk = 1; top.eval(); top.clk = 0; top.eval(); ++cycles; };
  auto put = [&](const void* data, unsigned bytes) { fwrite(data, 1, bytes, out); };
  auto value = [&](unsigned p) {
    uint64_t v = 0;
    std::memcpy(&v, ports[p].at, ports[p].bytes < 8 ? ports[p].bytes : 8);
    return v;
  };
  top.clk = 0;
  top.eval();
  std::vector<uint32_t> buffer;
  for (;;) {
    const uint32_t op = word(in);
    if (op == 0) break;
    if (op == 1) {  // set
      const Port& p = ports[word(in)];
      const uint32_t n = word(in);
      buffer.resize(n);
      if (fread(buffer.data(), 4, n, in) != n) return 3;
      std::memcpy(p.at, buffer.data(), p.bytes);
    } else if (op == 2) {  // tick
      const uint32_t n = word(in);
      const auto start = std::chrono::steady_clock::now();
      for (uint32_t i = 0; i < n; ++i) tick();
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    } else if (op == 3) {  // get
      const Port& p = ports[word(in)];
      top.eval();
      put(p.at, p.bytes);
    } else if (op == 4) {  // tick until a port is 0
      const uint32_t p = word(in), limit = word(in);
      uint64_t n = 0;
      const auto start = std::chrono::steady_clock::now();
      while (value(p) && n < limit) { tick(); ++n; }
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      put(&n, 8);
    }
  }
  put(&seconds, 8);
  put(&cycles, 8);
  fclose(out);
  return 0;
}
"""


class Script:
    """Operations for a simulation, and the results by the order of their requests."""

    def __init__(self, ports: dict[str, tuple[int, int]]) -> None:
        self.ports = ports
        self.data = bytearray()
        self.results: list[tuple[str, int]] = []

    def set(self, port: str, value: int) -> None:
        index, width = self.ports[port]
        words = max(1, -(-width // 32))
        value &= (1 << width) - 1
        self.data += struct.pack("<III", 1, index, words + words % 2)
        self.data += value.to_bytes(4 * (words + words % 2), "little")

    def tick(self, n: int = 1) -> None:
        self.data += struct.pack("<II", 2, n)

    def get(self, port: str) -> int:
        """Ask for a port's value; return the index of the answer."""
        index, width = self.ports[port]
        self.data += struct.pack("<II", 3, index)
        self.results.append((port, _bytes(width)))
        return len(self.results) - 1

    def wait_low(self, port: str, limit: int) -> int:
        """Tick while a port is not 0; the answer is the number of ticks."""
        self.data += struct.pack("<III", 4, self.ports[port][0], limit)
        self.results.append(("", 8))
        return len(self.results) - 1


def _bytes(width: int) -> int:
    for bits, size in ((8, 1), (16, 2), (32, 4), (64, 8)):
        if width <= bits:
            return size
    return 4 * -(-width // 32)


class Simulation:
    """A component, Verilated, with its ports by name."""

    def __init__(
        self,
        component: Any,
        name: str,
        folder: Path,
        *,
        macros: Sequence[str] = ("romsim_sram.v",),
        reset: int = 2,
        opt: str = "-O2",
    ) -> None:
        self.ports: dict[str, tuple[int, int]] = {"rst": (0, 1)}
        self.files = [*self.emit(component, name, folder), *(VERILOG / macro for macro in macros)]
        self.inputs = ["rst"]
        for path_, member, value in component.signature.flatten(component):
            port = "__".join(map(str, path_))
            self.ports[port] = (len(self.ports), len(value))
            if member.flow == wiring.In:
                self.inputs.append(port)
        table = ", ".join(
            f"{{&top.{name_.replace('__', '___05F')}, {_bytes(width)}}}"
            for name_, (_, width) in self.ports.items()
        )
        main = folder / "main.cpp"
        text = _MAIN.replace("@TOP@", name).replace("@PORTS@", table)
        main.write_text(text.replace("@RESET@", str(reset)))
        self.build = verilate(
            self.files,
            name,
            cpp=[main],
            opt=opt,
            # memories and registers without reset begin with anything
            args=["-Wno-fatal", "-Wno-lint", "--x-initial", "unique", "--x-assign", "unique"],
        )
        self.folder = folder
        self.arguments: list[str] = []  # of the simulation, such as where ROM images are

    def emit(self, component: Any, name: str, folder: Path) -> list[Path]:
        """Write a component's Verilog and that of the modules that it shares."""
        platform = VerilogPlatform()
        pending = {name: component}
        files = []
        done: set[str] = set()
        while pending:
            module, part = pending.popitem()
            path = folder / f"{module}.v"
            unread = part.unread_bits() if hasattr(part, "unread_bits") else {}
            path.write_text(write_verilog(part, module, platform, unread=unread))
            files.append(path)
            done.add(module)
            pending |= {k: v for k, v in platform.shared.items() if k not in done}
        return sorted(files)

    def script(self) -> Script:
        script = Script(self.ports)
        for port in self.inputs:
            script.set(port, 0)
        script.set("rst", 1)
        script.tick(2)
        script.set("rst", 0)
        return script

    def run(self, script: Script, *, timeout: float = 300) -> list[int]:
        """Run a script; return its answers."""
        source, result = self.folder / "script.bin", self.folder / "result.bin"
        source.write_bytes(bytes(script.data) + struct.pack("<I", 0))
        subprocess.run(
            [str(self.build.executable), str(source), str(result), *self.arguments],
            check=True,
            timeout=timeout,
        )
        data = result.read_bytes()
        values, at = [], 0
        for port, size in script.results:
            value = int.from_bytes(data[at : at + size], "little")
            values.append(value & ((1 << self.ports[port][1]) - 1) if port else value)
            at += size
        self.seconds, self.cycles = struct.unpack("<dQ", data[at : at + 16])
        return values
