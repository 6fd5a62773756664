// The part of half precision that the kernels use.
#pragma once
#include <cstdint>
#include <cstring>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half x) {
  _Float16 value;
  std::memcpy(&value, &x, sizeof value);
  return value;
}
inline __half __float2half_rn(float x) {
  const _Float16 value = static_cast<_Float16>(x);
  __half result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}
