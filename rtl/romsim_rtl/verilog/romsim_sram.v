// Behavioural SRAM: one write port with a mask of lanes, one registered read port.
// A read of the word that is being written in the same cycle gives the old word.
module romsim_sram #(
  parameter integer DEPTH = 2,
  parameter integer ADDR_BITS = 1,
  parameter integer LANES = 1,
  parameter integer LANE_BITS = 8
) (
  input wire clk,
  input wire w_en,
  input wire [ADDR_BITS-1:0] w_addr,
  input wire [LANES-1:0] w_mask,
  input wire [LANES*LANE_BITS-1:0] w_data,
  input wire r_en,
  input wire [ADDR_BITS-1:0] r_addr,
  output reg [LANES*LANE_BITS-1:0] r_data
);
  reg [LANES*LANE_BITS-1:0] words [0:DEPTH-1];
  integer lane;

  // The array is read and written in this block alone, and read first: blocking writes are exact,
  // and a simulator need not keep a list of pending ones.
  always @(posedge clk) begin
    if (r_en) r_data <= words[r_addr];
    if (w_en) begin
      if (&w_mask) begin
        // verilator lint_off BLKSEQ
        words[w_addr] = w_data;  // see above
        // verilator lint_on BLKSEQ
      end else begin
        for (lane = 0; lane < LANES; lane = lane + 1) begin
          if (w_mask[lane]) begin
            // verilator lint_off BLKSEQ
            words[w_addr][lane*LANE_BITS +: LANE_BITS] = w_data[lane*LANE_BITS +: LANE_BITS];
            // verilator lint_on BLKSEQ
          end
        end
      end
    end
  end

`ifdef ROMSIM_TRACE
  // Every write, for who compares it with the cycle model's.
  import "DPI-C" function int romsim_trace_memory(
    input string name, input int depth, input int lanes, input int lane_bits);
  import "DPI-C" function void romsim_trace_word(input int value);
  import "DPI-C" function void romsim_trace_write(input int memory, input int address);
  localparam integer MASK_WORDS = (LANES + 31) / 32;
  localparam integer DATA_WORDS = (LANES * LANE_BITS + 31) / 32;
  wire [32*MASK_WORDS-1:0] trace_mask = (32*MASK_WORDS)'(w_mask);
  wire [32*DATA_WORDS-1:0] trace_data = (32*DATA_WORDS)'(w_data);
  int trace_memory;
  integer word;
  initial trace_memory = romsim_trace_memory($sformatf("%m"), DEPTH, LANES, LANE_BITS);
  always @(posedge clk) begin
    if (w_en) begin
      for (word = 0; word < MASK_WORDS; word = word + 1)
        romsim_trace_word(trace_mask[32*word +: 32]);
      for (word = 0; word < DATA_WORDS; word = word + 1)
        romsim_trace_word(trace_data[32*word +: 32]);
      romsim_trace_write(trace_memory, 32'(w_addr));
    end
  end
`endif
endmodule
