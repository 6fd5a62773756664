// Runs the cases that a test has written, and writes their memory afterwards.
//
//   driver CASES RESULTS
//
// A case, in native byte order: a seed; the number of its arrays, each a size and the bytes; then
// 'A' or 'F' as an int64, and the fields of Attention or FocusedMap in the order run_* reads them.
// An array is referred to by its number, -1 is none. A result: the arrays after the call.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "backend.h"

namespace {

using l2vit::Attention, l2vit::Dtype, l2vit::FocusedMap, l2vit::Layout, l2vit::View,
    l2vit::acc_size, l2vit::element_size;

// Exactly `bytes` large, so that AddressSanitizer detects access to the first byte beyond. All NaN.
class Array {
 public:
  explicit Array(int64_t bytes) : bytes_(bytes), data_(std::malloc(bytes)) {
    std::memset(data_.get(), 0xff, bytes);
  }
  char* data() const { return static_cast<char*>(data_.get()); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  int64_t bytes_;
  std::unique_ptr<void, Free> data_;
};

std::ifstream input;
std::vector<Array> arrays;

template <class T> T read() {
  T value;
  input.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

template <class T = void> T* read_array() {
  const int64_t index = read<int64_t>();
  return index < 0 ? nullptr : reinterpret_cast<T*>(arrays[index].data());
}

View read_view(int64_t element) {
  char* data = read_array<char>();
  data += read<int64_t>() * element;
  const int64_t image = read<int64_t>(), row = read<int64_t>(), token = read<int64_t>();
  const int64_t head = read<int64_t>(), channel = read<int64_t>();
  return {data, image, row, token, head, channel};
}

Layout read_layout() {
  const int64_t images = read<int64_t>(), height = read<int64_t>(), width = read<int64_t>();
  const int32_t* cu_seqlens = read_array<int32_t>();
  return {images, height, width, cu_seqlens, read_array<int32_t>()};
}

void check(const char* error) {
  if (!error) return;
  std::fprintf(stderr, "driver: %s\n", error);
  std::exit(2);
}

void run_attention() {
  Attention a{};
  a.dtype = static_cast<Dtype>(read<int64_t>());
  a.heads = read<int64_t>();
  a.head_dim = read<int64_t>();
  a.value_dim = read<int64_t>();
  a.queries = read_layout();
  a.keys = read_layout();
  a.relu = read<int64_t>();
  a.mean = read<int64_t>();
  a.denom_min = read<double>();
  a.eps = read<double>();
  a.factor = read<double>();
  a.scale = read_array();
  for (View* view : {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv})
    *view = read_view(element_size(a.dtype));
  a.dscale = read_array();

  const int64_t key_sums = a.queries.images * a.heads * a.head_dim * acc_size(a.dtype);
  const Array state(key_sums * a.value_dim), key_sum(key_sums);
  a.state = state.data();
  a.key_sum = key_sum.data();
  {
    const Array workspace(l2vit::cuda::workspace_size(a, false));
    a.workspace = workspace.data();
    check(l2vit::cuda::forward(a, nullptr));
  }
  const Array dstate(key_sums * a.value_dim), dkey_sum(key_sums);
  const Array workspace(l2vit::cuda::workspace_size(a, true));
  a.dstate = dstate.data();
  a.dkey_sum = dkey_sum.data();
  a.workspace = workspace.data();
  check(l2vit::cuda::backward(a, nullptr));
}

void run_focused_map() {
  FocusedMap f{};
  f.dtype = static_cast<Dtype>(read<int64_t>());
  f.rows = read<int64_t>();
  f.channels = read<int64_t>();
  f.pos_rows = read<int64_t>();
  f.power = read<double>();
  f.x = read_view(element_size(f.dtype)).data;
  f.x_stride = read<int64_t>();
  f.s = read_array();
  f.pos = read_array();
  f.out = read_array();
  f.dout = read_array();
  f.dx = read_array();
  f.ds = read_array();
  {
    const Array workspace(l2vit::cuda::workspace_size(f, false));
    f.workspace = workspace.data();
    check(l2vit::cuda::forward(f, nullptr));
  }
  const Array workspace(l2vit::cuda::workspace_size(f, true));
  f.workspace = workspace.data();
  check(l2vit::cuda::backward(f, nullptr));
}

}  // namespace

int main(int, char** arguments) {
  input.open(arguments[1], std::ios::binary);
  std::ofstream output(arguments[2], std::ios::binary);
  while (input.peek() != EOF) {
    emulation::set_seed(read<int64_t>());
    const int64_t count = read<int64_t>();
    arrays.clear();
    for (int64_t i = 0; i < count; ++i) {
      arrays.emplace_back(read<int64_t>());
      input.read(arrays.back().data(), arrays.back().bytes());
    }
    read<int64_t>() == 'A' ? run_attention() : run_focused_map();
    for (const Array& array : arrays) output.write(array.data(), array.bytes());
  }
  output.close();
  return output ? 0 : 1;
}
