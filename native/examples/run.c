/* Runs a package, and prints the first elements of each output:
 *     run_c model.fsm [name=value ...]
 * The value of a size that varies is a number (by default, its least); that of an input or an output is a file, which
 * the elements are read from, or written to, as they are in memory. Inputs without a file are ones, integers zeros. */
#include <framesmith.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* The value that the command line has for a name, or NULL. */
static const char* value_of(const char* name, int argc, char** argv) {
  const size_t length = strlen(name);
  for (int i = 2; i < argc; i++)
    if (!strncmp(argv[i], name, length) && argv[i][length] == '=') return argv[i] + length + 1;
  return NULL;
}

static int move(const framesmith_tensor* t, const char* path, int reading) {
  FILE* file = fopen(path, reading ? "rb" : "wb");
  const size_t bytes = elements(t) * item_size[t->dtype];
  const size_t done = !file ? 0 : reading ? fread(t->data, 1, bytes, file) : fwrite(t->data, 1, bytes, file);
  if (!file || fclose(file) || done != bytes) return fprintf(stderr, "%s: not %zu bytes\n", path, bytes), 1;
  return 0;
}

int main(int argc, char** argv) {
  framesmith_model* model;
  framesmith_tensor inputs[MOST] = {{0}}, outputs[MOST] = {{0}};
  int64_t sizes[MOST];
  const char* value;
  if (argc < 2) return fprintf(stderr, "run_c model.fsm [name=value ...]\n"), 1;
  if (framesmith_load(argv[1], NULL, &model)) return failed();
  const int32_t given = framesmith_inputs(model), results = framesmith_outputs(model);
  const int32_t varying = framesmith_dimensions(model);
  if (given > MOST || results > MOST || varying > MOST)
    return fprintf(stderr, "more tensors than this example takes\n"), 1;
  for (int32_t i = 0; i < varying; i++) {
    framesmith_range range;
    if (framesmith_dimension(model, i, &range)) return failed();
    value = value_of(range.name, argc, argv);
    sizes[i] = value ? atoll(value) : range.least;
  }
  if (framesmith_input_shapes(model, sizes, varying, inputs, given)) return failed();
  for (int32_t i = 0; i < given; i++) {
    framesmith_info info;
    if (framesmith_input(model, i, &info)) return failed();
    inputs[i].data = zeros(&inputs[i]);
    value = value_of(info.name, argc, argv);
    if (value && move(&inputs[i], value, 1)) return 1;
    for (size_t k = 0; !value && info.dtype == FRAMESMITH_FLOAT32 && k < elements(&inputs[i]); k++)
      ((float*)inputs[i].data)[k] = 1;
  }
  if (framesmith_shapes(model, inputs, given, outputs, results)) return failed();
  for (int32_t i = 0; i < results; i++) outputs[i].data = zeros(&outputs[i]);
  if (framesmith_run(model, inputs, given, outputs, results)) return failed();
  for (int32_t i = 0; i < results; i++) {
    framesmith_info info;
    if (framesmith_output(model, i, &info)) return failed();
    value = value_of(info.name, argc, argv);
    if (value && move(&outputs[i], value, 0)) return 1;
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
