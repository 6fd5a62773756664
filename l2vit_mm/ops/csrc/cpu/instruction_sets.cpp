// The choice among the instruction sets that the kernels were compiled for.
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "backend.h"
#include "kernels.h"

namespace l2vit::cpu {
namespace {

struct InstructionSet {
  const char* name;
  bool supported;  // by this processor
  const Kernels* kernels;
};

InstructionSet choose() {
#ifdef L2VIT_X86_KERNELS
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#endif
  const InstructionSet slowest_first[] = {
      {"plain", true, plain::kernels},
#ifdef L2VIT_X86_KERNELS
      {"avx2", has_avx2, avx2::kernels},
      {"avx512", has_avx512, avx512::kernels},
#endif
  };
  const char* requested = std::getenv("L2VIT_MM_CPU");
  const bool any = !requested || !*requested;
  InstructionSet chosen{};
  std::string names;
  for (const InstructionSet& set : slowest_first) {
    if (!set.supported) continue;
    if (any || !std::strcmp(set.name, requested)) chosen = set;
    names += (names.empty() ? "" : ", ") + std::string(set.name);
  }
  TORCH_CHECK_VALUE(chosen.kernels, "L2VIT_MM_CPU must be one of ", names,
                    " on this machine, got '", requested, "'");
  return chosen;
}

const InstructionSet& chosen() {
  static const InstructionSet set = choose();
  return set;
}

}  // namespace

const char* instruction_set_name() { return chosen().name; }

const Kernels& kernels(Dtype dtype) { return chosen().kernels[static_cast<int>(dtype)]; }

}  // namespace l2vit::cpu
