// The C interface: models, and errors as codes with text.
#include "framesmith.h"

#include <memory>
#include <mutex>
#include <new>

#include "archive.h"
#include "digest.h"
#include "error.h"
#include "frame.h"
#include "state.h"
#include "threads.h"

using namespace framesmith;

namespace framesmith {

constexpr int64_t kFormat = 2;

Json read_manifest(const Archive& archive) {
  Json manifest = Json::parse(archive.checked_member("manifest.json"));
  if (manifest["format"].integer() != kFormat)
    throw Error(FRAMESMITH_UNSUPPORTED, "the package has format " + std::to_string(manifest["format"].integer()) +
                                            "; this runtime reads format " + std::to_string(kFormat));
  return manifest;
}

// Returns a member, verified by its digest in the manifest.
std::string_view digested(const Archive& archive, const Json& manifest, const std::string& name) {
  const std::string_view bytes = archive.member(name);
  if (sha256(bytes) != manifest["digests"][name].string()) damaged("\"" + name + "\" has another digest");
  return bytes;
}

const Json& choose_target(const Json& manifest, const char* wanted) {
  std::string names;
  for (const Json& target : manifest["targets"].array()) {
    names += " " + target["name"].string();
    if (target["machine"].string() != machine_name() || !has_features(target["features"].array())) continue;
    if (!wanted || target["name"].string() == wanted) return target;
  }
  throw Error(FRAMESMITH_UNSUPPORTED, (wanted ? std::string("no code for the target ") + wanted
                                              : std::string("no code for this processor")) +
                                          "; the package has:" + names);
}

// The part of a model that its instances share.
struct Package {
  Package(const char* path, const char* target_name)
      : archive(Bytes::of_file(path)), manifest(read_manifest(archive)),
        target(choose_target(manifest, target_name)),
        plan(manifest, Json::parse(digested(archive, manifest, target["plan"].string()))),
        code(digested(archive, manifest, target["code"].string()), plan.table != 0) {
    for (const std::string& name : plan.constants) constants.push_back(archive.member(name));
    text = archive.member("manifest.json");
  }

  Archive archive;
  Json manifest;
  const Json& target;
  Plan plan;
  Code code;
  std::vector<std::string_view> constants;
  std::string text;
};

}  // namespace framesmith

struct framesmith_model {
  explicit framesmith_model(std::shared_ptr<const Package> of)
      : package(std::move(of)), state(package->plan, package->archive) {}

  const std::shared_ptr<const Package> package;
  const Plan& plan = package->plan;
  State state;
  std::mutex writing;  // of state: runs that write it follow each other

  // A frame for the time of a run; concurrent runs have distinct ones.
  class Lease {
   public:
    explicit Lease(framesmith_model& m) : model_(m) {
      const std::lock_guard<std::mutex> held(m.mutex_);
      if (!m.idle_.empty()) {
        frame_ = std::move(m.idle_.back());
        m.idle_.pop_back();
      }
      if (!frame_) frame_ = std::make_unique<Frame>(m.plan, m.package->code.functions(), m.package->constants, m.state);
    }
    ~Lease() {
      const std::lock_guard<std::mutex> held(model_.mutex_);
      model_.idle_.push_back(std::move(frame_));
    }
    Frame* operator->() const { return frame_.get(); }

   private:
    framesmith_model& model_;
    std::unique_ptr<Frame> frame_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Frame>> idle_;
};

namespace {

thread_local std::string last_error;

template <class F> framesmith_status guarded(F f) {
  last_error.clear();
  try {
    f();
    return FRAMESMITH_OK;
  } catch (const Error& e) {
    last_error = e.what();
    return e.status;
  } catch (const std::bad_alloc&) {
    last_error = "there is not enough memory";
    return FRAMESMITH_NO_MEMORY;
  } catch (const std::exception& e) {
    last_error = e.what();
    return FRAMESMITH_SYSTEM;
  }
}

void require(bool there, const char* what) {
  if (!there) throw Error(FRAMESMITH_BAD_ARGUMENT, what);
}

void describe(const Value& value, framesmith_info& info) {
  info.dtype = value.dtype;
  info.rank = static_cast<int32_t>(value.size.size());
  for (size_t d = 0; d < value.size.size(); d++)
    info.size[d] = value.size[d].entry < 0 ? value.size[d].literal : -1;
  info.written = value.written;
}

}  // namespace

extern "C" {

int32_t framesmith_abi(void) { return FRAMESMITH_ABI; }
const char* framesmith_error(void) { return last_error.c_str(); }

framesmith_status framesmith_load(const char* path, const char* target, framesmith_model** model) {
  return guarded([&] {
    require(path && model, "a path and a place for the model are needed");
    *model = nullptr;
    *model = new framesmith_model(std::make_shared<const Package>(path, target));
  });
}

framesmith_status framesmith_instance(const framesmith_model* model, framesmith_model** other) {
  return guarded([&] {
    require(model && other, "a model and a place for the other are needed");
    *other = nullptr;
    *other = new framesmith_model(model->package);
  });
}

framesmith_status framesmith_reset(framesmith_model* model) {
  return guarded([&] {
    require(model, "a model is needed");
    const std::lock_guard<std::mutex> held(model->writing);
    model->state.reset();
  });
}

void framesmith_free(framesmith_model* model) { delete model; }

framesmith_status framesmith_verify(const framesmith_model* model) {
  return guarded([&] {
    require(model, "a model is needed");
    const Package& p = *model->package;
    for (const auto& entry : p.manifest["digests"].object()) digested(p.archive, p.manifest, entry.first);
  });
}

const char* framesmith_manifest(const framesmith_model* model) { return model->package->text.c_str(); }
const char* framesmith_target(const framesmith_model* model) {
  return model->package->target["name"].string().c_str();
}
int32_t framesmith_dimensions(const framesmith_model* model) {
  return static_cast<int32_t>(model->plan.dimensions.size());
}
int32_t framesmith_inputs(const framesmith_model* model) { return static_cast<int32_t>(model->plan.inputs.size()); }
int32_t framesmith_outputs(const framesmith_model* model) { return static_cast<int32_t>(model->plan.outputs.size()); }

framesmith_status framesmith_input(const framesmith_model* model, int32_t index, framesmith_info* info) {
  return guarded([&] {
    require(model && info && index >= 0 && index < framesmith_inputs(model), "no such input");
    const auto& input = model->plan.inputs[static_cast<size_t>(index)];
    *info = {input.name.c_str(), input.dtype, static_cast<int32_t>(input.sizes.size()), {}, 0};
    for (size_t d = 0; d < input.sizes.size(); d++)
      info->size[d] = input.sizes[d].dimension < 0 ? input.sizes[d].offset : -1;
    if (input.value >= 0) info->written = model->plan.values[static_cast<size_t>(input.value)].written;
  });
}

framesmith_status framesmith_output(const framesmith_model* model, int32_t index, framesmith_info* info) {
  return guarded([&] {
    require(model && info && index >= 0 && index < framesmith_outputs(model), "no such output");
    *info = {};
    info->name = model->plan.output_names[static_cast<size_t>(index)].c_str();
    describe(model->plan.values[static_cast<size_t>(model->plan.outputs[static_cast<size_t>(index)])], *info);
    info->written = 1;
  });
}

framesmith_status framesmith_dimension(const framesmith_model* model, int32_t index, framesmith_range* range) {
  return guarded([&] {
    require(model && range && index >= 0 && index < framesmith_dimensions(model), "no such dimension");
    const Dimension& d = model->plan.dimensions[static_cast<size_t>(index)];
    *range = {d.name.c_str(), d.least, d.most};
  });
}

framesmith_status framesmith_input_shapes(framesmith_model* model, const int64_t* dimensions, int32_t dimension_count,
                                          framesmith_tensor* inputs, int32_t input_count) {
  return guarded([&] {
    require(model && (dimensions || !dimension_count) && (inputs || !input_count), "a model and tensors are needed");
    require(dimension_count == framesmith_dimensions(model), "the model has another number of dimensions");
    require(input_count == framesmith_inputs(model), "the model takes another number of inputs");
    const framesmith_model::Lease frame(*model);
    frame->bind(dimensions, inputs);
  });
}

framesmith_status framesmith_shapes(framesmith_model* model, const framesmith_tensor* inputs, int32_t input_count,
                                    framesmith_tensor* outputs, int32_t output_count) {
  return guarded([&] {
    require(model && (inputs || !input_count) && (outputs || !output_count), "a model and tensors are needed");
    require(output_count == framesmith_outputs(model), "the model gives another number of outputs");
    const framesmith_model::Lease frame(*model);
    frame->bind(inputs, input_count);
    for (int32_t k = 0; k < output_count; k++) frame->shape(k, outputs[k]);
  });
}

framesmith_status framesmith_run(framesmith_model* model, const framesmith_tensor* inputs, int32_t input_count,
                                 const framesmith_tensor* outputs, int32_t output_count) {
  return framesmith_run_on(model, inputs, input_count, outputs, output_count, nullptr);
}

framesmith_status framesmith_run_on(framesmith_model* model, const framesmith_tensor* inputs, int32_t input_count,
                                    const framesmith_tensor* outputs, int32_t output_count,
                                    const framesmith_team* team) {
  return guarded([&] {
    require(model && (inputs || !input_count) && (outputs || !output_count), "a model and tensors are needed");
    const framesmith_model::Lease frame(*model);
    frame->bind(inputs, input_count);
    std::unique_lock<std::mutex> held(model->writing, std::defer_lock);
    if (!model->state.empty()) held.lock();
    const ActiveRun active(team);
    frame->run(inputs, outputs, output_count);
  });
}

framesmith_status framesmith_set_threads(int32_t count) {
  return guarded([&] {
    require(count >= 1, "at least one thread runs");
    set_team_size(count);
  });
}
int32_t framesmith_threads(void) { return team_size(); }

}  // extern "C"
