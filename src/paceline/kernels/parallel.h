// Loops over OpenMP's threads: torch's pool, since GOMP_* resolve to the runtime that torch has loaded.
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
