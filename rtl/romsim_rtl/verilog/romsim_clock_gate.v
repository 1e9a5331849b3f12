// Behavioural clock gate: the output ticks in the cycles in which `en` was high when they began to
// end, as an integrated clock-gating cell does; `en` may move while the clock is high.
module romsim_clock_gate (
  input wire clk,
  input wire en,
  output wire gated
);
  reg held;
  always_latch if (!clk) held = en;
  assign gated = clk & held;
endmodule
