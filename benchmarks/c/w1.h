// W1: mean of a 2-D Gaussian. A row is x.
enum { D = 2, M = 10, T = 100, ROW = 2, DENSE = 0 };

static void gradient(const float *theta, const float *const *rows, float *restrict out) {
  for (int i = 0; i < M; i++)
    for (int k = 0; k < D; k++) out[k] += rows[i][k] - theta[k];
}
