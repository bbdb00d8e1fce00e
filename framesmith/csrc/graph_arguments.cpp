// Extern calls of a plan: finds the operator, and turns its Python arguments into a template by the schema's types.
#include "graph_plan.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>

namespace framesmith {

using c10::TypeKind;

static c10::TypePtr without_optional(const c10::TypePtr& type) {
  return type->kind() == TypeKind::OptionalType ? type->castRaw<c10::OptionalType>()->getElementType() : type;
}

static c10::IValue scalar_of(PyObject* o) {
  if (PyBool_Check(o)) return o == Py_True;
  if (PyLong_Check(o)) return py::handle(o).cast<int64_t>();
  if (PyFloat_Check(o)) return PyFloat_AS_DOUBLE(o);
  if (PyComplex_Check(o)) return c10::complex<double>(PyComplex_RealAsDouble(o), PyComplex_ImagAsDouble(o));
  if (PyUnicode_Check(o)) return py::handle(o).cast<std::string>();
  if (THPDtype_Check(o)) return static_cast<int64_t>(reinterpret_cast<THPDtype*>(o)->scalar_type);
  if (THPLayout_Check(o)) return static_cast<int64_t>(reinterpret_cast<THPLayout*>(o)->layout);
  if (THPMemoryFormat_Check(o)) return static_cast<int64_t>(reinterpret_cast<THPMemoryFormat*>(o)->memory_format);
  if (THPDevice_Check(o)) return reinterpret_cast<THPDevice*>(o)->device;
  TORCH_CHECK_TYPE(false, "framesmith: an operator's argument has type ", Py_TYPE(o)->tp_name);
}

template <typename T>
static c10::IValue list_of(py::handle items) {
  c10::List<T> out;
  for (py::handle item : items) out.push_back(item.cast<T>());
  return out;
}

static c10::IValue list_constant(py::handle value, const c10::TypePtr& element, std::optional<int32_t> length) {
  py::object items = py::reinterpret_borrow<py::object>(value);
  if (!PySequence_Check(value.ptr()) || PyUnicode_Check(value.ptr())) {  // int[2] takes an int for both
    py::list repeated;
    for (int i = 0; i < length.value_or(1); i++) repeated.append(value);
    items = repeated;
  }
  switch (without_optional(element)->kind()) {
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return list_of<int64_t>(items);
    case TypeKind::FloatType:
      return list_of<double>(items);
    case TypeKind::BoolType:
      return list_of<bool>(items);
    case TypeKind::StringType:
      return list_of<std::string>(items);
    case TypeKind::TensorType: {
      if (element->kind() == TypeKind::OptionalType) {
        c10::List<std::optional<at::Tensor>> none;
        for (py::handle item : items) {
          TORCH_CHECK_TYPE(item.is_none(), "framesmith: a tensor in a constant argument list");
          none.push_back(std::nullopt);
        }
        return none;
      }
      TORCH_CHECK_TYPE(py::len(items) == 0, "framesmith: a tensor in a constant argument list");
      return c10::List<at::Tensor>();
    }
    default: {
      c10::impl::GenericList out(element);
      for (py::handle item : items) out.push_back(scalar_of(item.ptr()));
      return out;
    }
  }
}

static c10::IValue constant(py::handle value, const c10::Argument& argument) {
  if (value.is_none())
    return argument.type()->kind() == TypeKind::TensorType ? c10::IValue(at::Tensor()) : c10::IValue();
  c10::TypePtr type = without_optional(argument.type());
  if (type->kind() == TypeKind::ListType)
    return list_constant(value, type->castRaw<c10::ListType>()->getElementType(), argument.N());
  if (type->kind() == TypeKind::TensorType && !THPVariable_Check(value.ptr()))
    return at::native::wrapped_scalar_tensor(scalar_of(value.ptr()).toScalar());
  if (type->kind() == TypeKind::FloatType) return value.cast<double>();
  if (type->kind() == TypeKind::BoolType) return value.cast<bool>();
  return scalar_of(value.ptr());
}

static Argument parse_argument(py::handle encoded, const c10::Argument& argument) {
  auto pair = encoded.cast<py::tuple>();
  auto tag = pair[0].cast<std::string>();
  py::object value = pair[1];
  switch (tag[0]) {
    case 't':
      return {Argument::Form::Tensor, {}, {value.cast<int>()}, {}};
    case 'l': {
      auto type = without_optional(argument.type());
      TORCH_CHECK_TYPE(type->kind() == TypeKind::ListType, "framesmith: a list of tensors for argument ",
                       argument.name());
      bool optional = type->castRaw<c10::ListType>()->getElementType()->kind() == TypeKind::OptionalType;
      return {optional ? Argument::Form::OptionalTensorList : Argument::Form::TensorList, {}, parse_ints(value), {}};
    }
    case 'd': {
      Integer entry{0, value.cast<int32_t>()};
      auto type = without_optional(argument.type());
      auto form = type->kind() == TypeKind::ListType ? Argument::Form::IntList : Argument::Form::Int;
      return {form, {}, {}, {entry}};
    }
    case 'e': {
      Argument out{Argument::Form::IntList, {}, {}, {}};
      for (py::handle item : value) out.integers.push_back(parse_integer(item));
      return out;
    }
    default:
      return {Argument::Form::Constant, constant(value, argument), {}, {}};
  }
}

static Argument default_argument(const c10::Argument& argument, const c10::FunctionSchema& schema) {
  if (argument.default_value()) return {Argument::Form::Constant, *argument.default_value(), {}, {}};
  TORCH_CHECK_TYPE(argument.type()->kind() == TypeKind::OptionalType, "framesmith: ", schema.name(),
                   " misses its argument ", argument.name());
  return {Argument::Form::Constant, c10::IValue(), {}, {}};
}

// A Python callable's arguments: tensors are named by their values, the rest stays Python.
static void collect_values(py::handle encoded, Extern& out) {
  auto pair = encoded.cast<py::tuple>();
  auto tag = pair[0].cast<std::string>();
  if (tag == "t") out.args.push_back({Argument::Form::Tensor, {}, {pair[1].cast<int>()}, {}});
  if (tag == "l") out.args.push_back({Argument::Form::TensorList, {}, parse_ints(pair[1]), {}});
}

static void parse_python(py::tuple t, Extern& out) {
  out.function = t[0];
  out.python_args = t[2];
  out.python_kwargs = t[3];
  for (py::handle a : out.python_args) collect_values(a, out);
  for (auto item : out.python_kwargs.cast<py::dict>()) collect_values(item.second, out);
}

static void parse_operator(py::tuple t, Extern& out) {
  auto name = t[0].cast<std::string>(), overload = t[1].cast<std::string>();
  out.op = c10::Dispatcher::singleton().findSchema({name, overload});
  TORCH_CHECK_NOT_IMPLEMENTED(out.op.has_value(), "framesmith: this PyTorch has no operator ", name,
                              overload.empty() ? "" : ".", overload);
  const c10::FunctionSchema& schema = out.op->schema();
  py::tuple args = t[2];
  py::dict kwargs = t[3];
  size_t used = 0;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const c10::Argument& argument = schema.arguments()[i];
    if (i < args.size()) {
      out.args.push_back(parse_argument(args[i], argument));
    } else if (kwargs.contains(argument.name())) {
      out.args.push_back(parse_argument(kwargs[argument.name().c_str()], argument));
      used++;
    } else {
      out.args.push_back(default_argument(argument, schema));
    }
  }
  TORCH_CHECK_TYPE(args.size() <= schema.arguments().size() && used == kwargs.size(),
                   "framesmith: unexpected arguments for ", name);
  out.begins = name.starts_with("_c10d_functional::");
  for (const c10::Argument& r : schema.returns())
    if (r.alias_info() && !r.alias_info()->isWrite()) out.clone = true;
}

Extern parse_extern(py::handle encoded) {
  auto t = encoded.cast<py::tuple>();
  Extern out;
  if (t[1].is_none()) parse_python(t, out);
  else parse_operator(t, out);
  out.results = parse_ints(t[4]);
  return out;
}

}  // namespace framesmith
