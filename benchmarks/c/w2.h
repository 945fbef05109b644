// W2: linear regression. A row is x (81 floats), y, and zeros up to a whole cache line.
enum { D = 81, M = 10, T = 600, ROW = 96, DENSE = 1 };

static void gradient(const float *restrict theta, const float *const *rows, float *restrict out) {
  float r[M];
  for (int i = 0; i < M; i++) r[i] = rows[i][D] - dot(rows[i], theta, ROW);
  for (int i = 0; i + 4 <= M; i += 4) add_four(out, r + i, rows[i], rows[i + 1], rows[i + 2], rows[i + 3], ROW);
  for (int i = M / 4 * 4; i < M; i++) add_one(out, r[i], rows[i], ROW);
}
