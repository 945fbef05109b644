// W3: metric learning. A row is u = −y (z, −1), 51 floats and zeros up to a whole cache line: log p = log σ(u·θ).
enum { D = 51, M = 256, T = 100, ROW = 64, DENSE = 1, BLOCK = 64 };

static void gradient(const float *restrict theta, const float *const *rows, float *restrict out) {
  for (int b = 0; b < M; b += BLOCK, rows += BLOCK) {  // a block of rows stays in the L1 cache for both products
    float w[BLOCK];
    for (int i = 0; i < BLOCK; i++) w[i] = dot(rows[i], theta, ROW);
    for (int i = 0; i < BLOCK; i++) w[i] = 1 / (1 + expf(w[i]));
    for (int i = 0; i < BLOCK; i += 4) add_four(out, w + i, rows[i], rows[i + 1], rows[i + 2], rows[i + 3], ROW);
  }
}
