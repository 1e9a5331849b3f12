"""The chip in cocotb: a host in Verilog around it, so that Python wakes once a command.

The host, a module ``top``, makes the clock, gives the chip a command, takes its result and keeps
the logits; a test writes a command, flips ``go``, and waits for ``finished`` to flip. It can hold
back a command and the taking of a result, and it can decode many tokens by itself. Only the
host's own signals are public, so the chip is as fast as Verilator makes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.lib import wiring

from romsim_compiler.description import Description
from romsim_models.errors import SpecError
from romsim_rtl.driver_build import chip_sources
from romsim_rtl.emit import TOP_MODULE, verilog_texts
from romsim_rtl.memory import address_bits
from romsim_rtl.rom_files import PROGRAMS
from romsim_rtl.toolchain import ToolError, make_safe_folder, make_safe_link
from romsim_rtl.verilated import verilate

__all__ = ["HOST_MODULE", "TOKEN_BITS", "CocotbBuild", "build_cocotb", "build_module", "run_cocotb"]

HOST_MODULE = "top"
"""Name of the top module in cocotb; cocotb's own C++ wants a model of the class ``Vtop``."""

TOKEN_BITS = 20
"""Bits of a token in a command; see `romsim_rtl.sequencer.Sequencer`."""

_HOST = """\
// Clock and host of the chip for cocotb; see romsim_rtl.driver_cocotb.
`timescale 1ns / 1ns
module top;
  reg clk = 0;
  always #1 clk = !clk;

  wire cmd_ready, done_valid, logit_valid;
  wire [19:0] done_token, logit_row;
  wire [@LANES@-1:0] logit_mask;
  wire [32*@LANES@-1:0] logit_data;
  wire [47:0] count_cycles, count_wait;
  wire [31:0] count_clipped;

  // what a test writes
  reg rst /*verilator public_flat_rw*/ = 1;
  reg go /*verilator public_flat_rw*/ = 0;  // another value: execute
  reg [7:0] program_number /*verilator public_flat_rw*/ = 0;
  reg [@TOKEN_BITS@-1:0] tokens /*verilator public_flat_rw*/ = 0;
  reg begin_sequence /*verilator public_flat_rw*/ = 0;
  reg adapted /*verilator public_flat_rw*/ = 0;
  reg [19:0] adapter /*verilator public_flat_rw*/ = 0;
  reg [31:0] n_more /*verilator public_flat_rw*/ = 0;  // tokens to decode after it, greedily
  reg [31:0] command_stall /*verilator public_flat_rw*/ = 0;  // cycles before a command is given
  reg [31:0] result_stall /*verilator public_flat_rw*/ = 0;  // cycles before a result is taken

  // what it reads
  reg finished /*verilator public_flat_rd*/ = 0;  // another value: the last result is taken
  reg is_loaded /*verilator public_flat_rd*/ = 0;  // the adapters are
  reg [19:0] token /*verilator public_flat_rd*/ = 0;
  wire [47:0] n_cycles /*verilator public_flat_rd*/ = count_cycles;
  wire [47:0] n_waited /*verilator public_flat_rd*/ = count_wait;
  wire [31:0] n_clipped /*verilator public_flat_rd*/ = count_clipped;
  reg [31:0] logits [0:@ROWS@-1] /*verilator public_flat_rd*/;

  reg seen = 0, cmd_valid = 0, done_ready = 0, cmd_reset = 0;
  reg [2:0] state = 0;
  reg [31:0] left = 0, more = 0;
  reg [@PROGRAM_BITS@-1:0] cmd_program = 0;
  reg [@TOKEN_BITS@-1:0] cmd_tokens = 0;
  integer lane;
@LORA@
  @CHIP@ chip (
    .clk(clk), .rst(rst),
    .cmd_valid(cmd_valid), .cmd_ready(cmd_ready), .cmd_program(cmd_program),
    .cmd_tokens(cmd_tokens), .cmd_reset(cmd_reset),
    .done_valid(done_valid), .done_ready(done_ready), .done_token(done_token),
    .logit_valid(logit_valid), .logit_row(logit_row), .logit_mask(logit_mask),
    .logit_data(logit_data), @PORTS@
    .count_cycles(count_cycles), .count_wait(count_wait), .count_clipped(count_clipped)
  );

  always @(posedge clk) begin
    if (logit_valid)
      for (lane = 0; lane < @LANES@; lane = lane + 1)
        if (logit_mask[lane]) logits[logit_row + lane] <= logit_data[32*lane +: 32];
    case (state)
      0: if (go != seen) begin  // a command waits
        seen <= go;
        left <= command_stall;
        more <= n_more;
        cmd_program <= program_number[@PROGRAM_BITS@-1:0];
        cmd_tokens <= tokens;
        cmd_reset <= begin_sequence;
        state <= 1;
      end
      1: if (left != 0) left <= left - 1;
      else begin
        cmd_valid <= 1;
        state <= 2;
      end
      2: if (cmd_ready) begin  // taken in this cycle
        cmd_valid <= 0;
        left <= result_stall;
        state <= 3;
      end
      3: if (done_valid) begin
        if (left != 0) left <= left - 1;
        else begin
          done_ready <= 1;
          state <= 4;
        end
      end
      default: begin  // taken in this cycle
        done_ready <= 0;
        token <= done_token;
        if (more != 0) begin
          more <= more - 1;
          left <= command_stall;
          cmd_program <= 0;
          cmd_tokens <= @TOKEN_BITS@'(done_token);
          cmd_reset <= 0;
          state <= 1;
        end else begin
          finished <= !finished;
          state <= 0;
        end
      end
    endcase
    if (rst) begin
      seen <= go;
      state <= 0;
      cmd_valid <= 0;
      done_ready <= 0;
    end
  end
endmodule
"""

_LORA = """
  // Adapters are loaded from the file of +adapters=, five words of 32 bits a cycle, with pauses.
  reg [159:0] entry = 0, record = 0;
  reg [15:0] pause = 16'h1d0f;
  reg [8*512-1:0] file_name = 0;
  integer file = 0;
  initial if ($value$plusargs("adapters=%s", file_name) != 0) file = $fopen(file_name, "rb");
  always @(posedge clk) if (!rst && !is_loaded) begin
    pause <= {pause[14:0], pause[15] ^ pause[13] ^ pause[12] ^ pause[10]};
    entry <= 0;
    if (pause[1:0] == 0) begin
      if (file != 0 && $fread(record, file) == 20) entry <= record;
      else is_loaded <= 1;
    end
  end
  // words are little-endian in the file, and $fread fills from the most significant byte
  function automatic [31:0] swapped(input [31:0] word);
    swapped = {word[7:0], word[15:8], word[23:16], word[31:24]};
  endfunction
  wire [31:0] kind = swapped(entry[159:128]);
"""

_LORA_PORTS = """
    .cmd_adapted(adapted), .cmd_adapter(adapter),
    .cfg_kind(kind[1:0]), .cfg_tile(kind[15:8]), .cfg_addr(20'(swapped(entry[127:96]))),
    .cfg_chunk(5'(swapped(entry[95:64]))),
    .cfg_data({swapped(entry[31:0]), swapped(entry[63:32])}),"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CocotbBuild:
    """A simulation that cocotb can run.

    Parameters
    ----------
    executable
        The program.
    images
        Folder of the ROM images, for ``+romdir=``; ``None`` for a module without.
    """

    executable: Path
    images: Path | None = None


def _host_text(description: Description) -> str:
    with_lora = bool(description.manifest["adapters"])
    values = {
        "@CHIP@": TOP_MODULE,
        "@TOKEN_BITS@": str(TOKEN_BITS * description.target.schedule.n_inflight),
        "@PROGRAM_BITS@": str(address_bits(len(PROGRAMS))),
        "@LANES@": str(description.target.vector.n_lanes),
        "@ROWS@": str(description.spec.vocab_size),
        "@LORA@": _LORA if with_lora else "  initial is_loaded = 1;",
        "@PORTS@": _LORA_PORTS if with_lora else "",
    }
    text = _HOST
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def build_cocotb(description: Description, *, opt: str = "-O3") -> CocotbBuild:
    """Build the chip and its host for cocotb, or take the build of the same content.

    Raises
    ------
    SpecError
        If the description has no images, or the RTL has no hardware for it.
    ToolError
        If a tool is missing or the build fails.
    """
    if description.target.kv.layout == "paged":
        raise SpecError(
            "KV layout of a chip in cocotb must be contiguous, ring or slotmap, not 'paged', whose "
            "block table this host does not write; use romsim_rtl.driver"
        )
    sources, images = chip_sources(description)
    host = make_safe_folder() / f"host-{sources[0].parent.name}.sv"
    aside = host.with_suffix(f".{os.getpid()}")
    aside.write_text(_host_text(description), encoding="utf-8", newline="\n")
    aside.replace(host)
    return CocotbBuild(executable=_verilate([*sources, host], opt=opt), images=images)


def build_module(component: Any, name: str, folder: Path, *, opt: str = "-O0") -> CocotbBuild:
    """Build one component for cocotb: its ports, and ``clk`` and ``rst``, are those of ``top``.

    Parameters
    ----------
    component
        A ``wiring.Component``.
    name
        Name for its Verilog module.
    folder
        Where to write the sources.
    """
    texts = verilog_texts(component, name)
    widths = {"clk": 1, "rst": 1}
    outputs = set()
    for path, member, value in component.signature.flatten(component):
        port = "__".join(map(str, path))
        widths[port] = len(value)
        if member.flow != wiring.In:
            outputs.add(port)
    ports = ",\n".join(
        f"  output wire [{width - 1}:0] {port} /*verilator public_flat_rd*/"
        if port in outputs
        else f"  input wire [{width - 1}:0] {port} /*verilator public_flat_rw*/"
        for port, width in widths.items()
    )
    connections = ", ".join(f".{port}({port})" for port in widths)
    texts["host.sv"] = (
        f"module {HOST_MODULE} (\n{ports}\n);\n  {name} chip ({connections});\nendmodule\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
    return CocotbBuild(executable=_verilate([folder / file for file in texts], opt=opt))


def _verilate(sources: Sequence[Path], *, opt: str) -> Path:
    import cocotb_tools.config

    libraries = make_safe_link(cocotb_tools.config.libs_dir)
    built = verilate(
        sources,
        HOST_MODULE,
        cpp=[cocotb_tools.config.share_dir / "lib" / "verilator" / "verilator.cpp"],
        opt=opt,
        args=["--vpi", "--timing", "--x-initial", "unique", "-Wno-fatal", "-Wno-lint"],
        ldflags=[f"-Wl,-rpath,{libraries}", f"-L{libraries}", "-lcocotbvpi_verilator"],
    )
    return built.executable


def run_cocotb(
    build: CocotbBuild,
    test_module: str,
    folder: Path,
    *,
    testcase: str | None = None,
    sram_seed: int | None = None,
    plusargs: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Path:
    """Run cocotb tests of a module on a build; return the file of their results.

    Parameters
    ----------
    test_module
        Importable name of the module with the tests.
    folder
        Where to run; results and a log are written there.
    testcase
        One of the tests; all by default.
    sram_seed
        Begin with random memories of this seed.
    environment
        Variables that the tests read.

    Raises
    ------
    SpecError
        If a test fails.
    ToolError
        If the simulation ends before its time.
    """
    from cocotb_tools.check_results import get_results
    from cocotb_tools.runner import Verilator

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(build.executable, folder / HOST_MODULE)
    arguments = list(plusargs)
    if build.images is not None:
        arguments += [f"+romdir={build.images}", "+rombin"]
    if sram_seed is not None:
        arguments += ["+verilator+rand+reset+2", f"+verilator+seed+{sram_seed}"]
    runner = Verilator()
    results = folder.resolve() / "results.xml"
    with suppress(SystemExit):  # what it says of a failed test to pytest alone
        runner.test(
            test_module=test_module,
            hdl_toplevel=HOST_MODULE,
            hdl_toplevel_lang="verilog",
            testcase=testcase,
            seed=1,
            build_dir=folder,
            test_dir=folder,
            results_xml=str(results),
            plusargs=arguments,
            extra_env=environment or {},
            log_file=folder / "log",
        )
    if not results.is_file():
        raise ToolError(
            f"Simulation of {test_module} must end with results, not without; see {folder / 'log'}"
        )
    n_tests, n_failed = get_results(results)
    if n_failed or not n_tests:
        raise SpecError(
            f"Tests of {test_module} must all pass in cocotb, not {n_failed} of {n_tests} fail; "
            f"see {folder / 'log'}"
        )
    return results
