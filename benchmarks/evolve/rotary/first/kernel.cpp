// Rotary embedding of query and key together, by halves. Loaded by ctypes.

#include <cstdint>

namespace {

constexpr int64_t WIDTH = 128, HALF = WIDTH / 2;
constexpr int64_t LANES = 16;  // evolve: 8 16 32 64
constexpr int64_t AHEAD = 0;   // evolve: 0 1 2 4 8
constexpr int64_t BY_HEAD = 1; // evolve: 0 1
constexpr int64_t UNROLL = 1;  // evolve: 1 2 4

inline void row(const float *__restrict x, const float *__restrict cos,
                const float *__restrict sin, float *__restrict out) {
  if (AHEAD)
    for (int64_t i = 0; i < WIDTH; i += 16)
      __builtin_prefetch(x + AHEAD * WIDTH + i);
  // evolve: begin row
#pragma GCC unroll UNROLL
  for (int64_t i = 0; i < HALF; i += LANES)
    for (int64_t l = i; l < i + LANES; l++) {
      const float a = x[l], b = x[l + HALF];
      out[l] = a * cos[l] - b * sin[l];
      out[l + HALF] = b * cos[l + HALF] + a * sin[l + HALF];
    }
  // evolve: end
}

void turn(const float *x, const float *cos, const float *sin, float *out, int64_t heads,
          int64_t tokens) {
  if (BY_HEAD) {
    for (int64_t h = 0; h < heads; h++)
      for (int64_t t = 0; t < tokens; t++)
        row(x + (h * tokens + t) * WIDTH, cos + t * WIDTH, sin + t * WIDTH,
            out + (h * tokens + t) * WIDTH);
  } else {
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t h = 0; h < heads; h++)
        row(x + (h * tokens + t) * WIDTH, cos + t * WIDTH, sin + t * WIDTH,
            out + (h * tokens + t) * WIDTH);
  }
}

} // namespace

extern "C" void run(const float *q, const float *k, const float *cos, const float *sin,
                    float *q_out, float *k_out, int64_t heads, int64_t groups, int64_t tokens) {
  turn(q, cos, sin, q_out, heads, tokens);
  turn(k, cos, sin, k_out, groups, tokens);
}
