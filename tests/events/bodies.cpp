// Products in bfloat16 by `pypm/events/bodies.h`, for `ctypes`.

#include "bodies.h"

extern "C" void product(const rows::bfloat16 *x, const rows::bfloat16 *weight, rows::bfloat16 *out,
                        int64_t turned, int64_t batch, int64_t size, int64_t columns) {
  const bodies::Weight<rows::bfloat16> w = {weight, nullptr, turned != 0, columns};
  bodies::product(x, w, batch, size, columns, 0, columns, out);
}
