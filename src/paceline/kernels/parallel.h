// Threads: OpenMP's, which are torch's pool, since GOMP_* resolve to the runtime that torch has loaded.
#pragma once
#include <cstdint>

// body(i) for i in 0..n-1, on several threads only if `many`: entering a parallel region costs about a microsecond
// even where it ends up with one thread.
template <typename Body> static inline void for_each(int64_t n, bool many, const Body& body) {
  if (!many) {
    for (int64_t i = 0; i < n; i++) body(i);
    return;
  }
#pragma omp parallel for
  for (int64_t i = 0; i < n; i++) body(i);
}

// This thread's own T, made at first use. The barrier hides where the address came from: GCC otherwise calls
// __tls_get_addr for it again in innermost loops, which spills every vector register (measured: twice the time).
template <typename T> static inline T& thread_own() {
  static thread_local T mine;
  T* address = &mine;
  asm("" : "+r"(address));
  return *address;
}
