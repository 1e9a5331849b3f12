from __future__ import annotations

from romsim_rtl.wide_registers import spare_copies

MODULE = r"""
module adder(clk, en, x, y, out);
  input clk;
  wire clk;
  output [127:0] out;
  reg [127:0] out;
  reg [127:0] \values.sums ;
  reg [127:0] held;
  reg [63:0] narrow;
  wire [127:0] sums;
  assign y = \values.sums [63:0];
  other part (
    .held(held),
    .sums(\values.sums )
  );
  always @(posedge clk)
    if (en ) begin : gated$0
      automatic reg [63:0] _0_ ;
      _0_ = \values.sums [63:0] + x;
      \values.sums <= { \values.sums [127:64], _0_ };
      narrow <= narrow + x;
      held <= x;
      out <= out + 128'h00000000000000000000000000000001;
    end
endmodule
"""

SPARED = r"""
module adder(clk, en, x, y, out);
  input clk;
  wire clk;
  output [127:0] out;
  reg [127:0] out;
  reg [127:0] \values.sums  [0:0];
  reg [127:0] held;
  reg [63:0] narrow;
  wire [127:0] sums;
  assign y = \values.sums [0][63:0];
  other part (
    .held(held),
    .sums(\values.sums [0])
  );
  always @(posedge clk)
    if (en ) begin : gated$0
      automatic reg [63:0] _0_ ;
      _0_ = \values.sums [0][63:0] + x;
      \values.sums [0]<= { \values.sums [0][127:64], _0_ };
      narrow <= narrow + x;
      held <= x;
      out <= out + 128'h00000000000000000000000000000001;
    end
endmodule
"""


def test_a_wide_accumulator_becomes_an_array_of_one() -> None:
    assert spare_copies(MODULE) == SPARED


def test_what_is_narrow_a_port_or_never_read_by_its_stage_stays() -> None:
    text = MODULE.replace(r"\values.sums [127:64]", "64'h0")
    text = text.replace(r"\values.sums [63:0] + x", "x")
    assert spare_copies(text) == text
