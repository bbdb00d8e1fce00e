/* Decodes with a language model that keeps keys and values in buffers of its own:
 *     decode model.fsm token steps
 * The model takes one token (an int64 of sizes 1, 1) and gives the logits of the next (floats). Two instances decode in
 * turn from the same token, and then the first once more from the start: each token is printed with its logit. */
#include <framesmith.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(void) {
  fprintf(stderr, "%s\n", framesmith_error());
  return 1;
}

/* The likeliest token behind `token`; its logit to `logit`. Negative: it failed. */
static int64_t next(framesmith_model* model, int64_t token, framesmith_tensor* logits, float* logit) {
  const framesmith_tensor ids = {&token, FRAMESMITH_INT64, 2, {1, 1}, {0}};
  if (framesmith_run(model, &ids, 1, logits, 1)) return -1;
  const float* values = logits->data;
  int64_t best = 0;
  for (int64_t k = 1; k < logits->size[logits->rank - 1]; k++)
    if (values[k] > values[best]) best = k;
  *logit = values[best];
  return best;
}

int main(int argc, char** argv) {
  framesmith_model* models[2];
  if (argc < 4) return fprintf(stderr, "decode model.fsm token steps\n"), 1;
  if (framesmith_load(argv[1], NULL, &models[0]) || framesmith_instance(models[0], &models[1])) return failed();
  const int64_t first = atoll(argv[2]);
  const int steps = atoi(argv[3]);
  int64_t start = 0;
  framesmith_tensor logits = {0};
  const framesmith_tensor ids = {&start, FRAMESMITH_INT64, 2, {1, 1}, {0}};
  if (framesmith_shapes(models[0], &ids, 1, &logits, 1)) return failed();
  logits.data = calloc((size_t)logits.size[logits.rank - 1], sizeof(float));
  for (int round = 0; round < 2; round++) {
    int64_t tokens[2] = {first, first};
    for (int step = 0; step < steps; step++)
      for (int m = 0; m < (round ? 1 : 2); m++) {
        float logit;
        tokens[m] = next(models[m], tokens[m], &logits, &logit);
        if (tokens[m] < 0) return failed();
        printf("%d %d %lld %.9g\n", round, m, (long long)tokens[m], logit);
      }
    if (framesmith_reset(models[0])) return failed();
  }
  free(logits.data);
  framesmith_free(models[0]);
  framesmith_free(models[1]);
  return 0;
}
