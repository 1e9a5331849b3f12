// Records of a traced simulation, little-endian words of 32 bits (romsim_rtl.driver_trace reads
// them):
//   1 id depth lanes lane_bits n_bytes name...   a memory, name padded to whole words
//   2 id cycle_low cycle_high address mask... data...   lanes written at the end of the cycle
//   3 cycle_low cycle_high start busy            issue in the cycle, or a change of the busy bits
//   4 cycle_low cycle_high                       a program's first possible issue
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

class Trace {
 public:
  static Trace*& current() {
    static Trace* instance = nullptr;
    return instance;
  }

  Trace() { current() = this; }
  ~Trace() {
    if (file_) std::fclose(file_);
  }
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  bool open(const char* name) {
    file_ = std::fopen(name, "wb");
    if (file_) std::setvbuf(file_, nullptr, _IOFBF, 1 << 20);
    return file_ != nullptr;
  }

  template <class Top>
  void cycle(std::uint64_t now, const Top& top) {
    now_ = now;
    if (!file_ || (top.event_start == 0 && top.event_busy == busy_)) return;
    busy_ = top.event_busy;
    put({3u, low(), high(), top.event_start, busy_});
  }

  void begin_program(std::uint64_t now) {
    now_ = now + 1;
    if (file_) put({4u, low(), high()});
  }

  void flush() {
    if (file_) std::fflush(file_);
  }

  int memory(const char* name, int depth, int lanes, int lane_bits) {
    const int id = n_memories_++;
    if (file_) {
      const std::uint32_t size = static_cast<std::uint32_t>(std::strlen(name));
      put({1u, static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(depth),
           static_cast<std::uint32_t>(lanes), static_cast<std::uint32_t>(lane_bits), size});
      std::vector<char> padded((size + 3) / 4 * 4, 0);
      std::memcpy(padded.data(), name, size);
      std::fwrite(padded.data(), 1, padded.size(), file_);
    }
    return id;
  }

  void word(std::uint32_t value) {
    if (file_) pending_.push_back(value);
  }

  void write(int id, std::uint32_t address) {
    if (!file_) return;
    put({2u, static_cast<std::uint32_t>(id), low(), high(), address});
    std::fwrite(pending_.data(), sizeof(std::uint32_t), pending_.size(), file_);
    pending_.clear();
  }

 private:
  std::uint32_t low() const { return static_cast<std::uint32_t>(now_); }
  std::uint32_t high() const { return static_cast<std::uint32_t>(now_ >> 32); }

  template <std::size_t N>
  void put(const std::uint32_t (&words)[N]) {
    std::fwrite(words, sizeof(std::uint32_t), N, file_);
  }

  std::FILE* file_ = nullptr;
  std::uint64_t now_ = 0;
  std::uint32_t busy_ = 0;
  int n_memories_ = 0;
  std::vector<std::uint32_t> pending_;
};

extern "C" {
int romsim_trace_memory(const char* name, int depth, int lanes, int lane_bits) {
  return Trace::current()->memory(name, depth, lanes, lane_bits);
}
void romsim_trace_word(int value) {
  Trace::current()->word(static_cast<std::uint32_t>(value));
}
void romsim_trace_write(int id, int address) {
  Trace::current()->write(id, static_cast<std::uint32_t>(address));
}
}
