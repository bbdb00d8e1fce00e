// The guard tree: a straight-line program of accessors and checks over registers, run before a variant is used.
#pragma once

#include <Python.h>

namespace framesmith {

// The values a frame offers to a tree. `locals[local_index[i]]` is the tree's local i; a null index is the identity.
struct FrameView {
  PyObject* const* locals;
  const int* local_index;
  PyObject* globals;   // dict
  PyObject* builtins;  // dict
  PyObject* closure;   // tuple of cells, or null
  const int* cell_index;
  PyObject* local(Py_ssize_t i) const { return locals[local_index ? local_index[i] : i]; }
};

extern PyTypeObject* GuardTreeType;

// The graph inputs as a new tuple if every guard holds. Null otherwise: with no exception set if a guard fails.
PyObject* check_tree(PyObject* tree, const FrameView& frame);

// The tree watched an object that died: it can never hold again.
bool tree_dead(PyObject* tree);

// Calls `notify(arg)` once, when that happens; null = no more.
void watch_tree(PyObject* tree, void (*notify)(void*), void* arg);

// Names of the locals and of the cells that the tree reads (borrowed tuples of str).
PyObject* tree_locals(PyObject* tree);
PyObject* tree_cells(PyObject* tree);

}  // namespace framesmith
