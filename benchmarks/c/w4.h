// W4: MLP 18-18-18-8-2 with ReLU and softmax. A row is x (18 floats), 1, y.
//
// A layer is a matrix of (in + 1) rows, the bias last, so that its input ends in a one. Matrices are padded with zeros:
// columns to whole vectors of 8 floats, rows to a multiple of BLOCK, the rows kept in registers at a time.
enum { D = 854, M = 50, T = 40, ROW = 20, DENSE = 0, BLOCK = 5 };

typedef float Vec __attribute__((vector_size(32), aligned(32)));
#define INLINE static inline __attribute__((always_inline))

typedef struct {
  Vec l1[20][3], l2[20][3], l3[20][1], l4[10][1];
} Layers;

// out = a·w for M rows of a; `depth` columns of a are used, `stride` apart; w has `width` vectors a row.
INLINE void product(const float *a, int stride, int depth, const Vec *w, int width, Vec *out) {
  for (int b = 0; b < M; b += BLOCK) {
    Vec acc[BLOCK][3] = {0};
    for (int i = 0; i < depth; i++)
#pragma GCC unroll 5
      for (int k = 0; k < BLOCK; k++)
#pragma GCC unroll 3
        for (int v = 0; v < width; v++) acc[k][v] += a[(b + k) * stride + i] * w[i * width + v];
    for (int k = 0; k < BLOCK; k++)
      for (int v = 0; v < width; v++) out[(b + k) * width + v] = acc[k][v];
  }
}

// out = a'·delta, the gradient of a layer's matrix; `rows` of it, a multiple of BLOCK.
INLINE void outer(const float *a, int stride, int rows, const Vec *delta, int width, Vec *out) {
  for (int i = 0; i < rows; i += BLOCK) {
    Vec acc[BLOCK][3] = {0};
    for (int b = 0; b < M; b++)
#pragma GCC unroll 5
      for (int k = 0; k < BLOCK; k++)
#pragma GCC unroll 3
        for (int v = 0; v < width; v++) acc[k][v] += a[b * stride + i + k] * delta[b * width + v];
    for (int k = 0; k < BLOCK; k++)
      for (int v = 0; v < width; v++) out[(i + k) * width + v] = acc[k][v];
  }
}

// ReLU of n columns of a (stride apart); column n becomes the one that meets the bias.
INLINE void relu(float *a, int stride, int n) {
  for (int k = 0; k < M * stride; k++) a[k] = a[k] > 0 ? a[k] : 0;
  for (int b = 0; b < M; b++) a[b * stride + n] = 1;
}

INLINE void relu_backward(float *delta, const float *a, int n) {
  for (int k = 0; k < n; k++) delta[k] = a[k] > 0 ? delta[k] : 0;
}

INLINE void unpack(const float *theta, int in, int out, float *w, int stride) {
  for (int i = 0; i <= in; i++)
    for (int j = 0; j < out; j++) w[i * stride + j] = theta[i * out + j];
}

INLINE void pack(float *theta, int in, int out, const float *w, int stride) {
  for (int i = 0; i <= in; i++)
    for (int j = 0; j < out; j++) theta[i * out + j] = w[i * stride + j];
}

INLINE void transpose(const float *theta, int in, int out, float *w, int stride) {
  for (int i = 0; i < in; i++)
    for (int j = 0; j < out; j++) w[j * stride + i] = theta[i * out + j];
}

static void gradient(const float *restrict theta, const float *const *rows, float *restrict out) {
  static const int o2 = 342, o3 = 684, o4 = 836;  // where layers 2 to 4 begin in θ
  static Layers w, g;
  static Vec w2t[18][3], w3t[8][3], w4t[2][1];
  static Vec a1[M][3], a2[M][3], a3[M][2], z3[M][1], z4[M][1], d1[M][3], d2[M][3], d3[M][1], d4[M][1];
  static float x[M][ROW], y[M];
  for (int b = 0; b < M; b++) {
    memcpy(x[b], rows[b], sizeof x[b]);
    y[b] = x[b][19], x[b][19] = 0;
  }
  unpack(theta, 18, 18, (float *)w.l1, 24), unpack(theta + o2, 18, 18, (float *)w.l2, 24);
  unpack(theta + o3, 18, 8, (float *)w.l3, 8), unpack(theta + o4, 8, 2, (float *)w.l4, 8);
  transpose(theta + o2, 18, 18, (float *)w2t, 24), transpose(theta + o3, 18, 8, (float *)w3t, 24);
  transpose(theta + o4, 8, 2, (float *)w4t, 8);

  product(x[0], ROW, 19, w.l1[0], 3, a1[0]), relu((float *)a1, 24, 18);
  product((float *)a1, 24, 19, w.l2[0], 3, a2[0]), relu((float *)a2, 24, 18);
  product((float *)a2, 24, 19, w.l3[0], 1, z3[0]);
  for (int b = 0; b < M; b++) a3[b][0] = z3[b][0];
  relu((float *)a3, 16, 8);
  product((float *)a3, 16, 9, w.l4[0], 1, z4[0]);

  for (int b = 0; b < M; b++) {
    float error = y[b] - 1 / (1 + expf(z4[b][0][0] - z4[b][0][1]));
    d4[b][0][0] = -error, d4[b][0][1] = error;
  }
  product((float *)d4, 8, 2, w4t[0], 1, d3[0]), relu_backward((float *)d3, (float *)z3, M * 8);
  product((float *)d3, 8, 8, w3t[0], 3, d2[0]), relu_backward((float *)d2, (float *)a2, M * 24);
  product((float *)d2, 24, 18, w2t[0], 3, d1[0]), relu_backward((float *)d1, (float *)a1, M * 24);

  outer(x[0], ROW, 20, d1[0], 3, g.l1[0]), outer((float *)a1, 24, 20, d2[0], 3, g.l2[0]);
  outer((float *)a2, 24, 20, d3[0], 1, g.l3[0]), outer((float *)a3, 16, 10, d4[0], 1, g.l4[0]);
  pack(out, 18, 18, (float *)g.l1, 24), pack(out + o2, 18, 18, (float *)g.l2, 24);
  pack(out + o3, 18, 8, (float *)g.l3, 8), pack(out + o4, 8, 2, (float *)g.l4, 8);
}
