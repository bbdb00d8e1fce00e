/* The C interface of the framesmith runtime: run models that `framesmith.package` has written.
 *
 *     framesmith_model* model;
 *     if (framesmith_load("model.fsm", NULL, &model)) puts(framesmith_error());
 *     framesmith_tensor x = {data, FRAMESMITH_FLOAT32, 2, {4, 10}}, y = {result, FRAMESMITH_FLOAT32, 2, {4, 3}};
 *     if (framesmith_run(model, &x, 1, &y, 1)) puts(framesmith_error());
 *     framesmith_free(model);
 *
 * Each function that can fail returns a status; the text of a thread's last error is `framesmith_error()`. A model may
 * be run by many threads at once, and a process may have many models. A model that writes its buffers keeps them from
 * one run to the next, and its runs follow each other: each of its instances has buffers of its own. What stands here stays as it is while
 * FRAMESMITH_ABI does: functions are added, none changes. */
#ifndef FRAMESMITH_H
#define FRAMESMITH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FRAMESMITH_ABI 1
#define FRAMESMITH_MAX_RANK 8
#if defined(_WIN32)
#define FRAMESMITH_API
#else
#define FRAMESMITH_API __attribute__((visibility("default")))
#endif

typedef struct framesmith_model framesmith_model;

typedef enum framesmith_status {
  FRAMESMITH_OK = 0,
  FRAMESMITH_BAD_ARGUMENT = 1, /* a tensor or number that the model does not take */
  FRAMESMITH_BAD_FILE = 2,     /* no package, or one that is damaged */
  FRAMESMITH_UNSUPPORTED = 3,  /* a newer format, or no code for this processor */
  FRAMESMITH_SYSTEM = 4,       /* the operating system refused something */
  FRAMESMITH_NO_MEMORY = 5,
  FRAMESMITH_BAD_INDEX = 6     /* an index among the inputs is out of range; outputs are undefined */
} framesmith_status;

typedef enum framesmith_dtype {
  FRAMESMITH_FLOAT32 = 0,
  FRAMESMITH_FLOAT64 = 1,
  FRAMESMITH_FLOAT16 = 2,
  FRAMESMITH_BFLOAT16 = 3,
  FRAMESMITH_INT8 = 4,
  FRAMESMITH_INT16 = 5,
  FRAMESMITH_INT32 = 6,
  FRAMESMITH_INT64 = 7,
  FRAMESMITH_UINT8 = 8,
  FRAMESMITH_BOOL = 9
} framesmith_dtype;

/* Memory of the caller. `stride` counts elements; all zeros: row-major. */
typedef struct framesmith_tensor {
  void* data;
  int32_t dtype;
  int32_t rank;
  int64_t size[FRAMESMITH_MAX_RANK];
  int64_t stride[FRAMESMITH_MAX_RANK];
} framesmith_tensor;

/* An input or an output. `size` is -1 where it varies. `written`: an input that a run writes. Strings live as long as
 * the model. */
typedef struct framesmith_info {
  const char* name;
  int32_t dtype;
  int32_t rank;
  int64_t size[FRAMESMITH_MAX_RANK];
  int32_t written;
} framesmith_info;

/* A size that varies, and the least and the greatest that it may be (INT64_MAX: there is no limit). */
typedef struct framesmith_range {
  const char* name;
  int64_t least;
  int64_t most;
} framesmith_range;

FRAMESMITH_API int32_t framesmith_abi(void);

/* The text of this thread's last error, or "". It is valid until the thread's next call. */
FRAMESMITH_API const char* framesmith_error(void);

/* Loads a package. `target`: the name of the code to use; NULL: the best that this processor runs. Manifest, plan and
 * code are checked against their digests; weights are mapped, and read when they are needed. */
FRAMESMITH_API framesmith_status framesmith_load(const char* path, const char* target, framesmith_model** model);
FRAMESMITH_API void framesmith_free(framesmith_model* model);

/* Another instance of a loaded model: it shares code and mapped weights with it, and its buffers are as they were
 * packaged. Each is freed for itself, in any order. */
FRAMESMITH_API framesmith_status framesmith_instance(const framesmith_model* model, framesmith_model** other);

/* Makes the buffers of an instance what they were when they were packaged; after an error of a run they may be neither
 * as before it nor as behind it. Without buffers that runs write, it does nothing. */
FRAMESMITH_API framesmith_status framesmith_reset(framesmith_model* model);

/* Compares every member of the file with its digest, weights included. */
FRAMESMITH_API framesmith_status framesmith_verify(const framesmith_model* model);

/* What the model is, as JSON (see docs/package.md), and which code runs. */
FRAMESMITH_API const char* framesmith_manifest(const framesmith_model* model);
FRAMESMITH_API const char* framesmith_target(const framesmith_model* model);

FRAMESMITH_API int32_t framesmith_inputs(const framesmith_model* model);
FRAMESMITH_API int32_t framesmith_outputs(const framesmith_model* model);
FRAMESMITH_API framesmith_status framesmith_input(const framesmith_model* model, int32_t index, framesmith_info* info);
FRAMESMITH_API framesmith_status framesmith_output(const framesmith_model* model, int32_t index, framesmith_info* info);

/* The sizes that vary. */
FRAMESMITH_API int32_t framesmith_dimensions(const framesmith_model* model);
FRAMESMITH_API framesmith_status framesmith_dimension(const framesmith_model* model, int32_t index,
                                                      framesmith_range* range);

/* Fills in dtype, rank and sizes of the inputs where the dimensions are as given, in their order. */
FRAMESMITH_API framesmith_status framesmith_input_shapes(framesmith_model* model, const int64_t* dimensions,
                                                         int32_t dimension_count, framesmith_tensor* inputs,
                                                         int32_t input_count);

/* Fills in dtype, rank and sizes of the outputs of a run on these inputs; `data` of neither is read. */
FRAMESMITH_API framesmith_status framesmith_shapes(framesmith_model* model, const framesmith_tensor* inputs,
                                                   int32_t input_count, framesmith_tensor* outputs,
                                                   int32_t output_count);

/* Runs the model. Outputs are written to the caller's memory, which has the sizes that `framesmith_shapes` tells. */
FRAMESMITH_API framesmith_status framesmith_run(framesmith_model* model, const framesmith_tensor* inputs,
                                                int32_t input_count, const framesmith_tensor* outputs,
                                                int32_t output_count);

/* Threads of the caller's. `size`: how many there are. `run` calls `member(data, number, count)` on `count` threads at
 * once, `wanted` or less, of which the calling thread is number 0, and returns when all calls have. */
typedef struct framesmith_team {
  int32_t (*size)(void);
  void (*run)(void (*member)(void* data, int32_t number, int32_t count), void* data, int32_t wanted);
} framesmith_team;

/* Runs the model on the caller's threads, which then do not compete with the runtime's: for a program whose own parallel
 * loops run just before or after. While another run is active it is as `framesmith_run`. */
FRAMESMITH_API framesmith_status framesmith_run_on(framesmith_model* model, const framesmith_tensor* inputs,
                                                   int32_t input_count, const framesmith_tensor* outputs,
                                                   int32_t output_count, const framesmith_team* team);

/* The number of threads that runs of this process share out their work among; by default, the processors. Runs at the
 * same time have equal shares, each at least the thread that it was called by. */
FRAMESMITH_API framesmith_status framesmith_set_threads(int32_t count);
FRAMESMITH_API int32_t framesmith_threads(void);

#ifdef __cplusplus
}
#endif
#endif
