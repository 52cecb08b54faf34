// Which instruction set the core's kernels run with: chosen once, from what the processor has.
#pragma once

namespace native {

enum class InstructionSet : unsigned { portable, avx2, avx512 };
constexpr unsigned instruction_sets = 3;
constexpr const char* instruction_set_names[instruction_sets] = {"portable", "avx2", "avx512"};

bool is_available(InstructionSet);
InstructionSet active_instruction_set();

// For tests and benchmarks: from now on, all kernels of this process. It must be available.
void use_instruction_set(InstructionSet);

}  // namespace native
