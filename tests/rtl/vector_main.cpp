// Drives a Verilated vector unit: unit H's read ports as memories, stimuli from a file, and every
// buffer write, result register, broadcast and busy cycle as a line of text, and reads counted.
#include <ctime>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "Vromsim_vector.h"
#include "Vromsim_vector___024root.h"
#include "shape.h"  // N_LANES, N_GROUPS, EM_WORDS, INSTR_WORDS, lane access, traced memories

static std::vector<int64_t> o_memory(1 << 16);
static std::vector<int32_t> d_memory(1 << 16);
static std::vector<uint32_t> l_memory(1 << 10);
static int64_t cycle = 0;
static bool quiet = false;
static uint32_t noise = 1;
static FILE* out = nullptr;
static int reads[N_READS];  // since the last instruction ended
static int changes[N_REGISTERS];  // likewise
static uint64_t registers[N_REGISTERS];

static uint32_t word(FILE* f) {
  uint32_t value;
  if (fread(&value, 4, 1, f) != 1) std::exit(3);
  return value;
}

static void print_wide(const uint32_t* words, int n) {
  for (int i = n - 1; i >= 0; --i) fprintf(out, "%08" PRIx32, words[i]);
}

static void log_writes(const char* name, int group, bool en, uint32_t addr, uint32_t mask,
                       const uint32_t* data, int n_words) {
  if (!en) return;
  fprintf(out, "%s %" PRId64 " %d %u %08" PRIx32 " ", name, cycle, group, addr, mask);
  print_wide(data, n_words);
  fputc('\n', out);
}

static void log_results(int group, const uint32_t* lanes) {
  fprintf(out, "V %" PRId64 " %d ", cycle, group);
  print_wide(lanes, 32);
  fputc('\n', out);
}

static void step(Vromsim_vector& top) {
  top.eval();
  if (!quiet) {
    trace_memories(top, log_writes);
    trace_results(top, log_results);
    count_reads(top, reads);
    uint64_t now[N_REGISTERS] = {};
    look_at_registers(top, now);
    for (int i = 0; i < N_REGISTERS; ++i) changes[i] += now[i] != registers[i];
    std::memcpy(registers, now, sizeof now);
    if (top.lg_valid) {
      fprintf(out, "L %d ", top.lg_row);
      uint32_t mask[N_GROUPS];
      std::memcpy(mask, &top.lg_mask, sizeof mask);
      print_wide(mask, N_GROUPS);
      for (int k = 0; k < N_LANES; ++k) fprintf(out, " %d", static_cast<int>(lg(top, k)));
      fputc('\n', out);
    }
    if (top.bc_kind) {
      fprintf(out, "B %" PRId64 " %d %d %d %d %d %x", cycle, top.bc_kind, top.bc_token,
              top.bc_layer, top.bc_pos, top.bc_block, top.bc_mask);
      for (int g = 0; g < N_GROUPS; ++g) {
        fputc(' ', out);
        print_wide(codes(top, g), 8);
        fprintf(out, " %d %d", shift(top, g), sum(top, g));
      }
      fputc('\n', out);
    }
  }
  const bool o_en = top.o_en, d_en = top.d_en, l_en = top.l_en;
  const uint32_t o_addr = top.o_addr, d_addr = top.d_addr, l_addr = top.l_addr;
  top.clk = 1;
  top.eval();
  top.clk = 0;
  // noise where nothing was asked for: nobody may take it
  noise = noise * 1664525 + 1013904223;
  for (int k = 0; k < N_LANES; ++k) {
    set_o(top, k, o_en ? o_memory[o_addr * N_LANES + k] : static_cast<int64_t>(noise) << 20);
    set_d(top, k, d_en ? d_memory[d_addr * N_LANES + k] : static_cast<int32_t>(noise));
  }
  if (l_en) top.l_data = l_memory[l_addr];
  ++cycle;
}

struct Rows {
  uint32_t token, head, row, mask[N_GROUPS];
  int32_t data[N_LANES];
  explicit Rows(FILE* in) {
    token = word(in);
    head = word(in);
    row = word(in);
    for (auto& one : mask) one = word(in);
    for (auto& one : data) one = static_cast<int32_t>(word(in));
  }
  void drive(Vromsim_vector& top) const {
    top.ly_valid = 1;
    top.ly_token = token;
    top.ly_head = head;
    top.ly_row = row;
    set_ly_mask(top, mask);
    for (int k = 0; k < N_LANES; ++k) set_ly(top, k, data[k]);
  }
};

int main(int argc, char** argv) {
  VerilatedContext context;
  context.commandArgs(argc, argv);
  context.randReset(2);
  context.randSeed(11);
  Vromsim_vector top{&context};
  FILE* in = fopen(argv[1], "rb");
  out = fopen(argv[2], "w");
  if (!in || !out) return 2;
  prepare(top, context);
  top.clk = 0;
  top.rst = 1;
  top.start = top.ly_valid = top.em_valid = 0;
  quiet = true;
  step(top);
  step(top);
  top.rst = 0;
  quiet = false;
  for (;;) {
    const uint32_t op = word(in);
    if (op == 0) break;
    if (op == 1) {  // contents of unit H
      const uint32_t which = word(in), n = word(in);
      for (uint32_t i = 0; i < n; ++i) {
        const uint64_t low = word(in);
        if (which == 0)
          o_memory[i] = static_cast<int64_t>(low | static_cast<uint64_t>(word(in)) << 32);
        else if (which == 1)
          d_memory[i] = static_cast<int32_t>(low);
        else
          l_memory[i] = static_cast<uint32_t>(low);
      }
    } else if (op == 2) {
      top.d_valid = word(in);
    } else if (op == 3) {  // a beat of rows
      Rows rows(in);
      rows.drive(top);
      cycle = 0;
      step(top);
      top.ly_valid = 0;
    } else if (op == 4) {  // an instruction, with words of the embedding at given cycles
      uint32_t instr[INSTR_WORDS];
      for (auto& one : instr) one = word(in);
      std::memcpy(&top.instr, instr, sizeof instr);
      const uint32_t pos = word(in), n_words = word(in);
      struct Word { int64_t at; uint32_t word, plane, data[EM_WORDS]; };
      std::vector<Word> words(n_words);
      for (auto& one : words) {
        one.at = word(in);
        one.word = word(in);
        one.plane = word(in);
        for (auto& part : one.data) part = word(in);
      }
      // rows of another token, one beat a cycle from the first cycle after the start
      std::vector<Rows> rows;
      for (uint32_t n = word(in); n; --n) rows.emplace_back(in);
      fputs("S\n", out);
      cycle = 0;
      top.start = 1;
      top.pos = pos;
      step(top);
      top.start = 0;
      top.pos = 0xAAAA;
      for (auto& one : instr) one = 0xAAAAAAAA;
      std::memcpy(&top.instr, instr, sizeof instr);
      size_t next = 0;
      for (;;) {
        top.em_valid = 0;
        if (next < words.size() && words[next].at == cycle) {
          top.em_valid = 1;
          top.em_word = words[next].word;
          top.em_plane = words[next].plane;
          set_em(top, words[next].data);
          ++next;
        }
        top.eval();
        if (!top.busy) break;
        const size_t beat = static_cast<size_t>(cycle) - 1;
        if (beat < rows.size()) rows[beat].drive(top);
        step(top);
        top.ly_valid = 0;
        if (cycle > 5000) return 4;  // it hangs
      }
      top.em_valid = 0;
      fputs("C", out);
      for (auto& one : reads) {
        fprintf(out, " %d", one);
        one = 0;
      }
      fputs("\nT", out);
      for (auto& one : changes) {
        fprintf(out, " %d", one);
        one = 0;
      }
      fprintf(out, "\nF %" PRId64 "\n", cycle);
    } else if (op == 5) {  // idle cycles
      for (uint32_t n = word(in); n; --n) step(top);
    } else if (op == 6) {
      fprintf(out, "A %d %d %u\n", top.best_row, static_cast<int>(top.best_value), top.sat_count);
    } else if (op == 7) {  // time n cycles: idle, or one instruction over and over
      const uint32_t n = word(in), busy = word(in);
      quiet = true;
      const std::clock_t start = std::clock();
      uint32_t instr[INSTR_WORDS];
      for (auto& one : instr) one = word(in);
      std::memcpy(&top.instr, instr, sizeof instr);
      for (uint32_t i = 0; i < n; ++i) {
        top.start = busy && !top.busy;
        step(top);
      }
      top.start = 0;
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      fprintf(stderr, "%s: %.0f cycles/s\n", busy ? "busy" : "idle", n / seconds);
      while (top.busy) step(top);
      quiet = false;
    }
  }
  fclose(out);
  return 0;
}
