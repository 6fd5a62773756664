// The focused feature map: both passes.
#include "backend.h"
#include "focused_map.cuh"
#include "launcher.cuh"

namespace l2vit::cuda {
namespace {

const char* run(const FocusedMap& f, void* stream, bool backward) {
  Launcher launch(stream);
  with_type(f.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = AccType<T>;
    const MapTeams teams = MapTeams::make<T>(f);
    launch(invert_softplus<Acc>, ceil_div(f.channels, kMapThreads), 1, kMapThreads, 0, f);
    if (backward) {
      launch(focused_map<T, true>, teams.parts, 1, teams.threads,
             teams.shared ? teams.shared_bytes<T>(f) : 0, f, teams);
      launch(add_map_parts<T>, ceil_div(MapTeams::padded<T>(f), 32), 1, 32 * kMapSumRows,
             sizeof(SumMemory<Acc, kMapSumRows>), f, teams);
    } else {
      launch(focused_map<T, false>, ceil_div(f.rows, teams.count()), 1, teams.threads, 0, f, teams);
    }
  });
  return launch.error();
}

}  // namespace

int64_t workspace_size(const FocusedMap& f, bool backward) {
  return with_type(f.dtype, [&](auto type) {
    return map_workspace<typename decltype(type)::type>(f, backward);
  });
}

const char* forward(const FocusedMap& f, void* stream) { return run(f, stream, false); }
const char* backward(const FocusedMap& f, void* stream) { return run(f, stream, true); }

}  // namespace l2vit::cuda
