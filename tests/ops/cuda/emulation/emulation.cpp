#include <cuda_runtime.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

// The dynamic shared memory of the kernels.
extern uint4 l2vit_shared_memory[];
uint4 l2vit_shared_memory[emulation::kMaxSharedBytes / sizeof(uint4)];

namespace emulation {

const void* kernel_with_more;
int more_shared_bytes;

namespace {

constexpr size_t kStackBytes = 128 << 10;

enum class State { Ready, AtBarrier, AtExchange, Done };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  State state;
  int line;            // of the source where it waits
  unsigned exchanges;  // number started
  char values[2][16];  // its values in the last two
};

std::mt19937_64 random_engine;
std::vector<Fiber> fibers;
unsigned running;
const std::function<void()>* running_kernel;
ucontext_t scheduler;
const void* scheduler_stack;
size_t scheduler_stack_bytes;

[[noreturn]] void fail(const char* what, int line, int other_line) {
  std::fprintf(stderr, "emulation: %s (lines %d and %d), block %u %u\n", what, line, other_line,
               blockIdx.x, blockIdx.y);
  std::exit(3);
}

void leave(State state, int line) {
  Fiber& fiber = fibers[running];
  fiber.state = state;
  fiber.line = line;
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(state == State::Done ? nullptr : &fake_stack, scheduler_stack,
                                 scheduler_stack_bytes);
  swapcontext(&fiber.context, &scheduler);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

void begin_fiber() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
  (*running_kernel)();
  leave(State::Done, 0);
}

// Runs until it waits or ends.
void resume(unsigned index) {
  running = index;
  threadIdx = dim3(index, 0, 0);
  Fiber& fiber = fibers[index];
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, fiber.stack.get(), kStackBytes);
  swapcontext(&scheduler, &fiber.context);
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

// Whether all `count` fibers from `first` on wait in the state, all at the same line.
bool all_wait(unsigned first, unsigned count, State state) {
  for (unsigned i = first; i < first + count; ++i)
    if (fibers[i].state != state) return false;
  for (unsigned i = first; i < first + count; ++i)
    if (fibers[i].line != fibers[first].line)
      fail("threads wait at different places", fibers[first].line, fibers[i].line);
  return true;
}

void run_block() {
  const unsigned threads = blockDim.x;
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack.get(), kStackBytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context, begin_fiber, 0);
    fiber.state = State::Ready;
    fiber.exchanges = 0;
  }
  std::vector<unsigned> ready(threads);
  std::iota(ready.begin(), ready.end(), 0);
  while (!ready.empty()) {
    std::shuffle(ready.begin(), ready.end(), random_engine);
    for (unsigned i : ready) resume(i);
    ready.clear();
    for (unsigned warp = 0; warp < threads; warp += 32)
      if (all_wait(warp, 32, State::AtExchange))
        for (unsigned i = warp; i < warp + 32; ++i) ready.push_back(i);
    if (ready.empty() && all_wait(0, threads, State::AtBarrier))
      for (unsigned i = 0; i < threads; ++i) ready.push_back(i);
    for (unsigned i : ready) fibers[i].state = State::Ready;
  }
  for (unsigned i = 0; i < threads; ++i)
    if (fibers[i].state != State::Done)
      fail("a thread waits for others that don't come", fibers[i].line, fibers[0].line);
}

}  // namespace

void set_seed(uint64_t seed) { random_engine.seed(seed); }

void barrier(int line) { leave(State::AtBarrier, line); }

void exchange(int line, const void* value, void* result, size_t size, int other) {
  Fiber& fiber = fibers[running];
  // Two slots: other lanes may still read the last value, but not the one before.
  const unsigned place = fiber.exchanges++ % 2;
  std::memcpy(fiber.values[place], value, size);
  const unsigned partner = running / 32 * 32 + other;
  leave(State::AtExchange, line);
  std::memcpy(result, fibers[partner].values[place], size);
}

void run(const std::function<void()>& kernel, dim3 grid, dim3 block, size_t shared_bytes) {
  if (block.x % 32) fail("a warp is not full", 0, 0);
  if (fibers.size() < block.x) fibers.resize(block.x);
  running_kernel = &kernel;
  gridDim = grid;
  blockDim = block;
  ASAN_POISON_MEMORY_REGION(l2vit_shared_memory, sizeof l2vit_shared_memory);
  ASAN_UNPOISON_MEMORY_REGION(l2vit_shared_memory, shared_bytes);
  std::vector<uint64_t> order(static_cast<uint64_t>(grid.x) * grid.y);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_engine);
  for (uint64_t i : order) {
    blockIdx = dim3(i % grid.x, i / grid.x, 0);
    std::memset(l2vit_shared_memory, 0xff, shared_bytes);
    run_block();
  }
}

}  // namespace emulation
