// One chain of FSGLD as a plain C loop: the limit the other contenders are measured against.
//
// Compiled once per workload with -DMODEL='"w1.h"' and so on. The header gives the sizes D (parameters), M (batch),
// T (local steps), ROW (floats of a row in the table), DENSE (1: Λ is a matrix, 0: a diagonal) and
//   static void gradient(const float *theta, const float *const *rows, float *out)
// the sum of ∇log p(x_i|θ) over the M rows. All priors are N(0, I), f_s = 1/S.

#include <math.h>
#include <stdint.h>
#include <string.h>

#define ROUND_UP(n, k) (((n) + (k)-1) / (k) * (k))
#define ALIGNED __attribute__((aligned(64)))

// out += w0 a + w1 b + w2 c + w3 d. Four rows at a time spare three of four loads and stores of `out`.
static inline void add_four(float *restrict out, const float *w, const float *a, const float *b, const float *c,
                            const float *d, int n) {
  for (int k = 0; k < n; k++) out[k] += w[0] * a[k] + w[1] * b[k] + w[2] * c[k] + w[3] * d[k];
}

static inline void add_one(float *restrict out, float w, const float *a, int n) {
  for (int k = 0; k < n; k++) out[k] += w * a[k];
}

static inline float dot(const float *a, const float *b, int n) {
  float sum = 0;
  for (int k = 0; k < n; k++) sum += a[k] * b[k];
  return sum;
}

#include MODEL

enum { LANES = 16, DP = ROUND_UP(D, 16), BITS = ROUND_UP(T * M, LANES), NORMALS = ROUND_UP(T * D, 2 * LANES) };

// ---- random numbers: LANES xoshiro128++ generators side by side, Box-Muller normals ----

typedef struct {
  uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
} Rng;

static uint32_t splitmix(uint64_t *state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (z ^ (z >> 31)) >> 32;
}

static void seed_rng(Rng *rng, uint64_t seed) {
  for (int l = 0; l < LANES; l++) {
    rng->a[l] = splitmix(&seed), rng->b[l] = splitmix(&seed);
    rng->c[l] = splitmix(&seed), rng->d[l] = splitmix(&seed);
  }
}

static inline uint32_t rotl(uint32_t x, int k) { return (x << k) | (x >> (32 - k)); }

static void draw_bits(Rng *rng, uint32_t *restrict out, int n) {  // n: a multiple of LANES
  for (int i = 0; i < n; i += LANES)
    for (int l = 0; l < LANES; l++) {
      uint32_t a = rng->a[l], b = rng->b[l], c = rng->c[l], d = rng->d[l], t = b << 9;
      out[i + l] = rotl(a + d, 7) + a;
      c ^= a, d ^= b, b ^= c, a ^= d, c ^= t, d = rotl(d, 11);
      rng->a[l] = a, rng->b[l] = b, rng->c[l] = c, rng->d[l] = d;
    }
}

static void draw_normals(Rng *rng, float *restrict out, float scale) {  // NORMALS of them
  enum { HALF = NORMALS / 2 };
  static uint32_t bits[NORMALS] ALIGNED;
  const float pi = 3.14159265f;
  draw_bits(rng, bits, NORMALS);
  for (int i = 0; i < HALF; i++) {
    float u = ((int32_t)(bits[i] >> 8) + 0.5f) * 0x1p-24f;
    float radius = scale * sqrtf(-2 * logf(u)), angle = (int32_t)bits[HALF + i] * (pi * 0x1p-31f);
    out[i] = radius * sinf(angle);
    out[HALF + i] = radius * sinf(angle + pi / 2);  // cosf would be fused into a sincosf that does not vectorise
  }
}

// ---- FSGLD ----

typedef struct {
  float shift[DP], precision[DENSE ? D : 1][DP];
} Gaussian;  // log q = <shift, θ> − ½ θ'Λθ; the padding of each row is zero

// The drift's Gaussian part at client s: prior × q / q_s^(1/f_s).
static void conducive(Gaussian *g, const Gaussian *total, const float *shift, const float *precision, float f) {
  for (int i = 0; i < D; i++) g->shift[i] = total->shift[i] - shift[i] / f;
  for (int j = 0; j < (DENSE ? D : 1); j++)
    for (int i = 0; i < D; i++) g->precision[j][i] = total->precision[j][i] - precision[j * D + i] / f;
}

// out += shift − Λθ
static void add_grad_log(const Gaussian *g, const float *restrict theta, float *restrict out) {
  if (!DENSE) {
    for (int i = 0; i < D; i++) out[i] += g->shift[i] - g->precision[0][i] * theta[i];
    return;
  }
  const float(*p)[DP] = g->precision;
  float minus[DP] = {0};
  for (int i = 0; i < D; i++) minus[i] = -theta[i], out[i] += g->shift[i];
  int j = 0;
  for (; j + 4 <= D; j += 4) add_four(out, minus + j, p[j], p[j + 1], p[j + 2], p[j + 3], DP);
  for (; j < D; j++) add_one(out, minus[j], p[j], DP);
}

// One local step: θ += h/2 (scale Σ∇log p(x_i|θ) + shift − Λθ) + noise
static void step(float *restrict theta, const float *const *rows, const Gaussian *g, float scale, float h,
                 const float *restrict noise) {
  float drift[DP] ALIGNED = {0};
  gradient(theta, rows, drift);
  for (int i = 0; i < D; i++) drift[i] *= scale;
  add_grad_log(g, theta, drift);
  for (int i = 0; i < D; i++) theta[i] += h / 2 * drift[i] + noise[i];
}

static void total_with_prior(Gaussian *total, const float *shift, const float *precision, int num_clients) {
  enum { P = DENSE ? D * D : D };
  memset(total, 0, sizeof *total);
  for (int j = 0; j < (DENSE ? D : 1); j++)
    for (int i = 0; i < D; i++) total->precision[j][i] = !DENSE || i == j;
  for (int s = 0; s < num_clients; s++) {
    for (int i = 0; i < D; i++) total->shift[i] += shift[s * D + i];
    for (int k = 0; k < P; k++) total->precision[k / D][k % D] += precision[(size_t)s * P + k];
  }
}

void chain(const float *table, int num_clients, int num_rows, const float *shift, const float *precision,
           const float *init, float h, int rounds, uint64_t seed, float *draws) {
  static uint32_t bits[BITS] ALIGNED, pick[LANES] ALIGNED;
  static float noise[NORMALS] ALIGNED;
  static Gaussian total ALIGNED, g ALIGNED;
  float theta[DP] ALIGNED = {0}, f = 1.0f / num_clients;
  const float *rows[(T + 1) * M] = {0};  // one batch more, for the prefetch
  Rng rng;
  seed_rng(&rng, seed);
  memcpy(theta, init, D * sizeof(float));
  memset(&g, 0, sizeof g);
  total_with_prior(&total, shift, precision, num_clients);
  for (int r = 0; r < rounds; r++) {
    draw_bits(&rng, pick, LANES), draw_bits(&rng, bits, BITS), draw_normals(&rng, noise, sqrtf(h));
    size_t s = (uint64_t)pick[0] * num_clients >> 32;
    const float *shard = table + s * num_rows * ROW;
    conducive(&g, &total, shift + s * D, precision + s * (DENSE ? D * D : D), f);
    for (int k = 0; k < T * M; k++) rows[k] = shard + ((uint64_t)bits[k] * num_rows >> 32) * ROW;
    for (int t = 0; t < T; t++) {
      for (int i = 0; i < M; i++) __builtin_prefetch(rows[(t + 1) * M + i]);
      step(theta, rows + t * M, &g, num_rows / (f * M), h, noise + t * D);
    }
    memcpy(draws + (size_t)r * D, theta, D * sizeof(float));
  }
}

// For the check: the likelihood gradient of the first M rows of the table.
void batch_gradient(const float *table, const float *theta, float *out) {
  const float *rows[M];
  float padded[DP] ALIGNED = {0}, result[DP] ALIGNED = {0};
  memcpy(padded, theta, D * sizeof(float));
  for (int i = 0; i < M; i++) rows[i] = table + i * ROW;
  gradient(padded, rows, result);
  memcpy(out, result, D * sizeof(float));
}
