// Host of a Verilated chip: takes commands on standard input, a line each, and answers on standard
// output. Python wakes once a program, never once a cycle.
//
//   run PROGRAM RESET TOKEN...   execute a program for its tokens
//   greedy COUNT                 execute `decode` COUNT times, each for the token of the last result
//   adapter BASE                 use the adapter with that first entry from now on; without BASE, none
//   load FILE                    write a file of five words of 32 bits a cycle into the adapters'
//                                memories: kind | tile << 8, address, chunk, data (low, high)
//   pages INDEX NUMBER...        write entries of the block table: logical page, physical page
//   sequence NUMBER              programs that follow are of that sequence
//   fork SOURCE TARGET           a sequence takes the position of another
//   copy SOURCE TARGET TOKENS    copy a page; answers `copied CYCLES`, the command's cycle included
//
// Answer to each executed program, a line: `done TOKEN CYCLES CLIPPED ISSUED N_LOGITS`, followed by
// N_LOGITS int32. CYCLES is the time from the first issue until the next program may begin.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "Vromsim_top.h"
#include "verilated.h"

#ifdef ROMSIM_TRACE
#include "romsim_trace.h"
#endif
#if VM_TRACE_FST
#include "verilated_fst_c.h"
using Waves = VerilatedFstC;
#elif VM_TRACE
#include "verilated_vcd_c.h"
using Waves = VerilatedVcdC;
#endif

namespace {

struct Chip {
  VerilatedContext context;
  std::unique_ptr<Vromsim_top> top;
  std::uint64_t cycle = 0;
  std::uint64_t limit = 0;
  std::vector<std::int32_t> logits;
  std::size_t n_logits = 0;
  bool is_adapted = false;
  std::uint32_t adapter = 0;
#ifdef ROMSIM_TRACE
  Trace trace;
#endif
#if VM_TRACE
  std::unique_ptr<Waves> waves;
  std::uint64_t first_wave = 0, last_wave = 0;
#endif

  void step() {
#if defined(ROMSIM_TRACE) || VM_TRACE
    top->eval();
#endif
#ifdef ROMSIM_TRACE
    trace.cycle(cycle, *top);
#endif
    dump(0);  // what stands in the cycle, before the edge that ends it
    top->clk = 1;
    top->eval();
    dump(1);
    top->clk = 0;
    top->eval();
    ++cycle;
    if (top->logit_valid) take_logits();
  }

  void dump(int half) {
#if VM_TRACE
    if (waves && cycle >= first_wave && cycle < last_wave) waves->dump(2 * cycle + half);
#endif
    (void)half;
  }

  void take_logits() {
    const std::size_t row = top->logit_row;
    const auto* mask = reinterpret_cast<const std::uint32_t*>(&top->logit_mask);
    const auto* data = reinterpret_cast<const std::uint32_t*>(&top->logit_data);
    for (std::size_t lane = 0; lane < 8 * sizeof(top->logit_data) / 32; ++lane) {
      if (!(mask[lane / 32] >> (lane % 32) & 1)) continue;
      if (row + lane >= logits.size()) logits.resize(2 * (row + lane + 1));
      logits[row + lane] = static_cast<std::int32_t>(data[lane]);
      if (row + lane >= n_logits) n_logits = row + lane + 1;
    }
  }
};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(3);
}

void set_token(Chip& chip, unsigned index, std::uint32_t token) {
  auto* words = reinterpret_cast<std::uint32_t*>(&chip.top->cmd_tokens);
  for (unsigned bit = 0; bit < 20; ++bit) {
    const unsigned at = 20 * index + bit;
    const std::uint32_t value = (token >> bit & 1) << (at % 32);
    words[at / 32] = (words[at / 32] & ~(1u << (at % 32))) | value;
  }
}

std::uint32_t execute(Chip& chip, unsigned program, bool reset,
                      const std::vector<std::uint32_t>& tokens) {
  Vromsim_top& top = *chip.top;
  if (tokens.size() * 20 > 8 * sizeof(top.cmd_tokens)) fail("Program must have fewer tokens");
  chip.n_logits = 0;
  const std::uint64_t begun = chip.cycle, cycles = top.count_cycles;
  const std::uint64_t clipped = top.count_clipped, issued = top.count_issued;
  if (!top.cmd_ready) fail("Chip must be ready for a command");
  top.cmd_valid = 1;
  top.cmd_program = program;
  top.cmd_reset = reset;
#ifdef ROMSIM_LORA
  top.cmd_adapted = chip.is_adapted;
  top.cmd_adapter = chip.adapter;
#endif
  for (unsigned index = 0; index < tokens.size(); ++index) set_token(chip, index, tokens[index]);
#ifdef ROMSIM_TRACE
  chip.trace.begin_program(chip.cycle);
#endif
  chip.step();
  top.cmd_valid = 0;
  while (!top.done_valid) {
    chip.step();
    if (chip.cycle - begun > chip.limit) {
      fail("Program must end within " + std::to_string(chip.limit) + " cycles, but the chip hangs");
    }
  }
  const std::uint32_t token = top.done_token;
  top.done_ready = 1;
  chip.step();
  top.done_ready = 0;
#ifdef ROMSIM_TRACE
  chip.trace.flush();
#endif
  // two more cycles of hand-over: the result is taken, the next command is taken
  std::printf("done %u %llu %llu %llu %zu\n", token,
              static_cast<unsigned long long>(top.count_cycles - cycles + 2),
              static_cast<unsigned long long>(top.count_clipped - clipped),
              static_cast<unsigned long long>(top.count_issued - issued), chip.n_logits);
  std::fwrite(chip.logits.data(), sizeof(std::int32_t), chip.n_logits, stdout);
  std::fflush(stdout);
  return token;
}

void load(Chip& chip, const std::string& name) {
  std::FILE* file = std::fopen(name.c_str(), "rb");
  if (!file) fail("Adapter image must be a readable file, not " + name);
#ifdef ROMSIM_LORA
  Vromsim_top& top = *chip.top;
  for (std::uint32_t words[5]; std::fread(words, sizeof words, 1, file) == 1;) {
    top.cfg_kind = words[0] & 255;
    top.cfg_tile = words[0] >> 8;
    top.cfg_addr = words[1];
    top.cfg_chunk = words[2];
    top.cfg_data = words[3] | static_cast<std::uint64_t>(words[4]) << 32;
    chip.step();
  }
  top.cfg_kind = 0;
  for (int count = 0; count < 4; ++count) chip.step();
#endif
  std::fclose(file);
}

void map_pages(Chip& chip, const std::vector<std::uint32_t>& numbers) {
#ifdef ROMSIM_PAGES
  Vromsim_top& top = *chip.top;
  for (std::size_t at = 0; at + 1 < numbers.size(); at += 2) {
    top.page_en = 1;
    top.page_index = numbers[at];
    top.page_number = numbers[at + 1];
    chip.step();
  }
  top.page_en = 0;
#else
  (void)chip;
  if (!numbers.empty()) fail("Chip must have a block table to be given pages");
#endif
}

void use_sequence(Chip& chip, std::uint32_t number) {
#ifdef ROMSIM_SEQUENCES
  chip.top->cmd_sequence = number;
#else
  (void)chip;
  if (number) fail("Chip must have several sequences to be given one");
#endif
}

void fork_sequence(Chip& chip, std::uint32_t source, std::uint32_t target) {
#ifdef ROMSIM_SEQUENCES
  Vromsim_top& top = *chip.top;
  top.fork_en = 1;
  top.fork_source = source;
  top.fork_target = target;
  chip.step();
  top.fork_en = 0;
#else
  (void)chip, (void)source, (void)target;
  fail("Chip must have several sequences to fork one");
#endif
}

void copy_page(Chip& chip, std::uint32_t source, std::uint32_t target, std::uint32_t n_tokens) {
#ifdef ROMSIM_SEQUENCES
  Vromsim_top& top = *chip.top;
  const std::uint64_t cycles = top.count_cycles;
#ifdef ROMSIM_TRACE
  chip.trace.begin_program(chip.cycle);
#endif
  top.copy_en = 1;
  top.copy_source = source;
  top.copy_target = target;
  top.copy_tokens = n_tokens;
  chip.step();
  top.copy_en = 0;
  while (!top.cmd_ready) chip.step();
  for (int count = 0; count < 16; ++count) chip.step();  // until the last word is written
  std::printf("copied %llu\n", static_cast<unsigned long long>(top.count_cycles - cycles + 1));
  std::fflush(stdout);
#else
  (void)chip, (void)source, (void)target, (void)n_tokens;
  fail("Chip must have several sequences to copy a page");
#endif
}

const char* option(int argc, char** argv, const char* name) {
  for (int index = 1; index + 1 < argc; ++index) {
    if (!std::strcmp(argv[index], name)) return argv[index + 1];
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  Chip chip;
  chip.context.commandArgs(argc, argv);
  const char* seed = option(argc, argv, "--sram-seed");  // random memories; 0 without
  chip.context.randReset(seed ? 2 : 0);
  if (seed) chip.context.randSeed(std::atoi(seed));
  const char* limit = option(argc, argv, "--limit");
  chip.limit = limit ? std::strtoull(limit, nullptr, 10) : 1ull << 40;
#if VM_TRACE
  if (const char* file = option(argc, argv, "--waves")) {
    chip.context.traceEverOn(true);
    chip.waves = std::make_unique<Waves>();
    const char* first = option(argc, argv, "--from");
    const char* last = option(argc, argv, "--to");
    chip.first_wave = first ? std::strtoull(first, nullptr, 10) : 0;
    chip.last_wave = last ? std::strtoull(last, nullptr, 10) : ~0ull;
    chip.top = std::make_unique<Vromsim_top>(&chip.context);
    chip.top->trace(chip.waves.get(), 99);
    chip.waves->open(file);
  }
#endif
#ifdef ROMSIM_TRACE
  if (const char* file = option(argc, argv, "--trace")) {
    if (!chip.trace.open(file)) fail("Trace file must be writable, not " + std::string(file));
  }
#endif
  if (!chip.top) chip.top = std::make_unique<Vromsim_top>(&chip.context);
  Vromsim_top& top = *chip.top;
  top.clk = 0;
  top.rst = 1;
  top.cmd_valid = top.done_ready = 0;
#ifdef ROMSIM_PAGES
  top.page_en = 0;
#endif
#ifdef ROMSIM_SEQUENCES
  top.fork_en = top.copy_en = 0;
#endif
  top.eval();
  for (int count = 0; count < 3; ++count) chip.step();
  top.rst = 0;
  top.eval();
  std::printf("ready\n");
  std::fflush(stdout);

  std::uint32_t token = 0;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream parts(line);
    std::string word;
    parts >> word;
    std::vector<std::uint32_t> numbers;
    for (std::uint32_t number; parts >> number;) numbers.push_back(number);
    if (word == "run" && numbers.size() >= 3) {
      const std::vector<std::uint32_t> tokens(numbers.begin() + 2, numbers.end());
      token = execute(chip, numbers[0], numbers[1] != 0, tokens);
    } else if (word == "greedy" && numbers.size() == 1) {
      for (std::uint32_t count = 0; count < numbers[0]; ++count) {
        token = execute(chip, 0, false, {token});
      }
    } else if (word == "adapter" && numbers.size() <= 1) {
      chip.is_adapted = !numbers.empty();
      chip.adapter = numbers.empty() ? 0 : numbers[0];
    } else if (word == "pages") {
      map_pages(chip, numbers);
    } else if (word == "sequence" && numbers.size() == 1) {
      use_sequence(chip, numbers[0]);
    } else if (word == "fork" && numbers.size() == 2) {
      fork_sequence(chip, numbers[0], numbers[1]);
    } else if (word == "copy" && numbers.size() == 3) {
      copy_page(chip, numbers[0], numbers[1], numbers[2]);
    } else if (word == "load") {
      load(chip, line.substr(5));
      std::printf("loaded\n");
      std::fflush(stdout);
    } else {
      fail("Command must be one of those above with its operands, not " + word);
    }
  }
#if VM_TRACE
  if (chip.waves) chip.waves->close();
#endif
  top.final();
  return 0;
}
