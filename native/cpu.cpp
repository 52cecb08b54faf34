#include "cpu.hpp"

#include <atomic>

namespace native {

bool is_available(InstructionSet set) {
#if defined(__x86_64__)
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (set == InstructionSet::avx2) return avx2;
  if (set == InstructionSet::avx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("avx512vbmi2");
  }
#endif
  return set == InstructionSet::portable;
}

namespace {

InstructionSet best_instruction_set() {
  for (unsigned set = instruction_sets - 1; set > 0; set--) {
    if (is_available(InstructionSet(set))) return InstructionSet(set);
  }
  return InstructionSet::portable;
}

std::atomic<InstructionSet>& active() {
  static std::atomic<InstructionSet> set{best_instruction_set()};
  return set;
}

}  // namespace

InstructionSet active_instruction_set() { return active().load(std::memory_order_relaxed); }

void use_instruction_set(InstructionSet set) { active().store(set, std::memory_order_relaxed); }

}  // namespace native
