/* Runs a package on ones (integers: zeros), and prints the first elements of each output:
 *     run_c model.fsm [size of what varies] */
#include <framesmith.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 64

static const size_t item_size[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 1};

static int failed(void) {
  fprintf(stderr, "%s\n", framesmith_error());
  return 1;
}

static size_t elements(const framesmith_tensor* t) {
  size_t count = 1;
  for (int32_t d = 0; d < t->rank; d++) count *= (size_t)t->size[d];
  return count;
}

static void* zeros(const framesmith_tensor* t) { return calloc(elements(t) + 1, item_size[t->dtype]); }

int main(int argc, char** argv) {
  framesmith_model* model;
  framesmith_tensor inputs[MOST] = {{0}}, outputs[MOST] = {{0}};
  const int64_t varying = argc > 2 ? atoll(argv[2]) : 1;
  if (argc < 2 || framesmith_load(argv[1], NULL, &model)) return failed();
  const int32_t given = framesmith_inputs(model), results = framesmith_outputs(model);
  if (given > MOST || results > MOST) return fprintf(stderr, "more tensors than this example takes\n"), 1;
  for (int32_t i = 0; i < given; i++) {
    framesmith_info info;
    if (framesmith_input(model, i, &info)) return failed();
    inputs[i].dtype = info.dtype;
    inputs[i].rank = info.rank;
    for (int32_t d = 0; d < info.rank; d++) inputs[i].size[d] = info.size[d] < 0 ? varying : info.size[d];
    inputs[i].data = zeros(&inputs[i]);
    for (size_t k = 0; info.dtype == FRAMESMITH_FLOAT32 && k < elements(&inputs[i]); k++)
      ((float*)inputs[i].data)[k] = 1;
  }
  if (framesmith_shapes(model, inputs, given, outputs, results)) return failed();
  for (int32_t i = 0; i < results; i++) outputs[i].data = zeros(&outputs[i]);
  if (framesmith_run(model, inputs, given, outputs, results)) return failed();
  for (int32_t i = 0; i < results; i++) {
    framesmith_info info;
    if (framesmith_output(model, i, &info)) return failed();
    printf("%s:", info.name);
    for (size_t k = 0; k < elements(&outputs[i]) && k < 4 && info.dtype == FRAMESMITH_FLOAT32; k++)
      printf(" %.9g", ((float*)outputs[i].data)[k]);
    printf("\n");
  }
  for (int32_t i = 0; i < given; i++) free(inputs[i].data);
  for (int32_t i = 0; i < results; i++) free(outputs[i].data);
  framesmith_free(model);
  return 0;
}
