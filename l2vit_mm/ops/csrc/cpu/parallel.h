// Division of work among threads.
//
// How an image is divided depends on its own size alone, and sums are added in a fixed order: its
// results are bitwise the same whatever else is in the batch, and for any number of threads.
#pragma once
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

namespace l2vit::cpu {

// Most parts of an image or a feature map: few enough that their sums stay small against the
// tensors.
constexpr int64_t kMaxParts = 32;

class Buffer {
 public:
  explicit Buffer(int64_t bytes) : memory_(c10::GetCPUAllocator()->allocate(bytes)) {}
  char* data() const { return static_cast<char*>(memory_.get()); }

 private:
  c10::DataPtr memory_;
};

// Calls work(task, scratch) for every task. Each thread starts with a range of its own, so that
// threads work far apart in memory (each then faults in its own pages), and takes over what is left
// of the ranges of others when it is done.
template <class Work> void run(int64_t tasks, int64_t scratch_size, const Work& work) {
  const int64_t threads = std::min<int64_t>(tasks, at::get_num_threads());
  std::vector<std::atomic<int64_t>> next(threads);
  for (int64_t thread = 0; thread < threads; ++thread) next[thread] = thread * tasks / threads;
  at::parallel_for(0, threads, 1, [&](int64_t thread, int64_t) {
    const Buffer scratch(scratch_size);
    std::memset(scratch.data(), 0, scratch_size);
    for (int64_t i = 0; i < threads; ++i) {
      const int64_t range = (thread + i) % threads, end = (range + 1) * tasks / threads;
      for (int64_t task; (task = next[range]++) < end;) work(task, scratch.data());
    }
  });
}

}  // namespace l2vit::cpu
