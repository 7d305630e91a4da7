// The call of an operator from Python without a frame of Python's: arguments go from Python's calling convention
// straight onto the dispatcher's stack. Whatever is unusual about a call (subclasses, modes, tracers, a wrong type) is
// left to the function that Python would have called, which knows it all and words the errors.

#include <Python.h>
// Python.h comes first.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace {

using c10::IValue;

// What an argument may be for the short way; anything else takes the long one. Python counts them by their names.
#define OPWRIGHT_KINDS other, tensor, tensors, scalar, real, integer, integers, boolean, text
#define OPWRIGHT_TEXT(...) #__VA_ARGS__
#define OPWRIGHT_NAMES(...) OPWRIGHT_TEXT(__VA_ARGS__)
enum Kind : int64_t { OPWRIGHT_KINDS };

struct Argument {
    PyObject* name;  // interned, never freed
    Kind kind;
    bool optional;
    std::optional<IValue> fallback;  // the default
    std::vector<IValue> words;       // those that a text may be; empty: any
};

struct Call {
    PyObject_HEAD c10::OperatorHandle* op;
    std::vector<Argument>* arguments;
    size_t positional;
    Py_ssize_t returned;  // the argument that the call returns; -1: its results
    PyObject* container;  // makes the result of several; None: a tuple
    bool single;
    PyObject* slow;
};

PyObject* compiling = nullptr;  // the dictionary in which PyTorch says that it traces, and the word for it
PyObject* compiling_word = nullptr;
PyObject* short_word = nullptr;
PyObject* slow_word = nullptr;

struct Released {  // the interpreter, while the dispatcher works
    PyThreadState* state = PyEval_SaveThread();
    ~Released() { PyEval_RestoreThread(state); }
};

// One of the words that an argument may be; the others are for Python to refuse. What goes onto the stack is shared:
// nobody can write to a text.
bool push_word(const Argument& argument, std::string_view given, torch::jit::Stack& stack) {
    for (const IValue& word : argument.words) {
        if (word.toStringView() != given) continue;
        stack.push_back(word);
        return true;
    }
    return false;
}

// False: not for the short way.
bool push(const Argument& argument, PyObject* value, torch::jit::Stack& stack) {
    if (value == Py_None) {
        if (argument.optional) stack.emplace_back();
        return argument.optional;
    }
    switch (argument.kind) {
        case tensor:
            if (!THPVariable_CheckExact(value)) return false;
            stack.emplace_back(THPVariable_Unpack(value));
            return true;
        case tensors: {
            if (!PyList_CheckExact(value)) return false;
            c10::List<at::Tensor> list;
            list.reserve(PyList_GET_SIZE(value));
            for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); ++i) {
                PyObject* const item = PyList_GET_ITEM(value, i);
                if (!THPVariable_CheckExact(item)) return false;
                list.push_back(THPVariable_Unpack(item));
            }
            stack.emplace_back(std::move(list));
            return true;
        }
        case integers: {
            const bool list = PyList_CheckExact(value);
            if (!list && !PyTuple_CheckExact(value)) return false;
            const Py_ssize_t size = list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value);
            c10::List<int64_t> numbers;
            numbers.reserve(size);
            for (Py_ssize_t i = 0; i < size; ++i) {
                PyObject* const item = list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i);
                int overflow = 0;
                const long long number = PyLong_CheckExact(item) ? PyLong_AsLongLongAndOverflow(item, &overflow) : 0;
                if (!PyLong_CheckExact(item) || overflow != 0) return false;
                numbers.push_back(static_cast<int64_t>(number));
            }
            stack.emplace_back(std::move(numbers));
            return true;
        }
        case text: {
            Py_ssize_t size = 0;
            const char* const data = PyUnicode_CheckExact(value) ? PyUnicode_AsUTF8AndSize(value, &size) : nullptr;
            if (data == nullptr) {
                PyErr_Clear();
                return false;
            }
            if (!argument.words.empty()) return push_word(argument, {data, static_cast<size_t>(size)}, stack);
            stack.emplace_back(std::string(data, static_cast<size_t>(size)));
            return true;
        }
        case boolean:
            if (!PyBool_Check(value)) return false;
            stack.emplace_back(value == Py_True);
            return true;
        case scalar:
        case real:
        case integer:
            break;
        default:
            return false;
    }
    if (PyFloat_CheckExact(value) && argument.kind != integer) {
        stack.emplace_back(PyFloat_AS_DOUBLE(value));
        return true;
    }
    if (!PyLong_CheckExact(value)) return false;
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    if (argument.kind == real) {
        constexpr long long exact = 1LL << std::numeric_limits<double>::digits;
        if (number > exact || number < -exact) return false;
        stack.emplace_back(static_cast<double>(number));
    } else {
        stack.emplace_back(static_cast<int64_t>(number));
    }
    return true;
}

bool push_default(const Argument& argument, torch::jit::Stack& stack) {
    if (!argument.fallback || argument.fallback->isList()) return false;
    stack.push_back(*argument.fallback);
    return true;
}

// The arguments of a call onto the stack; false when it is not for the short way.
bool arrange(const Call& call, PyObject* args, PyObject* kwargs, torch::jit::Stack& stack) {
    const auto given = static_cast<size_t>(PyTuple_GET_SIZE(args));
    if (given > call.positional) return false;
    Py_ssize_t named = kwargs == nullptr ? 0 : PyDict_GET_SIZE(kwargs);
    stack.reserve(call.arguments->size());
    for (size_t i = 0; i < call.arguments->size(); ++i) {
        const Argument& argument = (*call.arguments)[i];
        if (i < given) {
            if (!push(argument, PyTuple_GET_ITEM(args, i), stack)) return false;
            continue;
        }
        PyObject* const value = named > 0 ? PyDict_GetItemWithError(kwargs, argument.name) : nullptr;
        if (value != nullptr) {
            --named;
            if (!push(argument, value, stack)) return false;
        } else if (!push_default(argument, stack)) {
            return false;
        }
    }
    return named == 0;  // a name that nobody knows, or given twice
}

PyObject* wrap(const IValue& value) {
    if (!value.isTensorList()) return THPVariable_Wrap(value.isTensor() ? value.toTensor() : at::Tensor());
    const auto list = value.toListRef();
    PyObject* const out = PyList_New(static_cast<Py_ssize_t>(list.size()));
    for (size_t i = 0; out != nullptr && i < list.size(); ++i) {
        PyList_SET_ITEM(out, static_cast<Py_ssize_t>(i), THPVariable_Wrap(list[i].toTensor()));
    }
    return out;
}

PyObject* results(const Call& call, const torch::jit::Stack& stack) {
    if (call.single) return wrap(stack[0]);
    if (stack.empty()) Py_RETURN_NONE;
    PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(stack.size()));
    if (tuple == nullptr) return nullptr;
    for (size_t i = 0; i < stack.size(); ++i) PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), wrap(stack[i]));
    if (call.container == Py_None) return tuple;
    PyObject* const made = PyObject_CallOneArg(call.container, tuple);
    Py_DECREF(tuple);
    return made;
}

bool usual() {
    return PyDict_GetItemWithError(compiling, compiling_word) != Py_True &&
           at::impl::PythonTorchFunctionTLS::stack_len() == 0 && !torch::jit::tracer::isTracing();
}

PyObject* run(Call* call, PyObject* args, PyObject* kwargs) {
    HANDLE_TH_ERRORS
    torch::jit::Stack stack;
    if (!usual() || !arrange(*call, args, kwargs, stack)) {
        if (PyErr_Occurred()) PyErr_Clear();
        return PyObject_Call(call->slow, args, kwargs);
    }
    {
        const Released released;
        call->op->callBoxed(&stack);
    }
    if (call->returned < 0) return results(*call, stack);
    PyObject* const given = call->returned < PyTuple_GET_SIZE(args)
                                ? PyTuple_GET_ITEM(args, call->returned)
                                : PyDict_GetItemWithError(kwargs, (*call->arguments)[call->returned].name);
    return Py_NewRef(given);
    END_HANDLE_TH_ERRORS
}

PyObject* call_short(PyObject* self, PyObject* args, PyObject* kwargs) {
    return run(reinterpret_cast<Call*>(self), args, kwargs);
}

// What a call of an operator object does: its short way, or the function that it names.
PyObject* call_operator(PyObject* self, PyObject* args, PyObject* kwargs) {
    PyObject** const dictionary = _PyObject_GetDictPtr(self);
    PyObject* const way =
        dictionary == nullptr || *dictionary == nullptr ? nullptr : PyDict_GetItemWithError(*dictionary, short_word);
    if (way != nullptr && way != Py_None) {
        Py_INCREF(way);  // the operator may be defined anew meanwhile
        PyObject* const out = run(reinterpret_cast<Call*>(way), args, kwargs);
        Py_DECREF(way);
        return out;
    }
    PyObject* const slow = PyObject_GetAttr(self, slow_word);
    if (slow == nullptr) return nullptr;
    PyObject* const out = PyObject_Call(slow, args, kwargs);
    Py_DECREF(slow);
    return out;
}

void destroy(PyObject* self) {
    auto* const call = reinterpret_cast<Call*>(self);
    PyTypeObject* const type = Py_TYPE(self);
    delete call->op;
    delete call->arguments;
    Py_XDECREF(call->container);
    Py_XDECREF(call->slow);
    type->tp_free(self);
    Py_DECREF(type);
}

PyType_Slot slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(call_short)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {0, nullptr},
};
PyType_Spec spec = {"opwright.Call", sizeof(Call), 0, Py_TPFLAGS_DEFAULT, slots};
PyTypeObject* call_type = nullptr;

// make(name, overload, kinds, returned, container, single, slow): kinds holds a tuple for each argument, of its kind,
// whether it is optional, and the words that it may be.
PyObject* make(PyObject*, PyObject* args) {
    HANDLE_TH_ERRORS
    const char* name = nullptr;
    const char* overload = nullptr;
    PyObject *kinds = nullptr, *container = nullptr, *slow = nullptr;
    Py_ssize_t returned = -1;
    int single = 0;
    if (!PyArg_ParseTuple(args, "ssO!nOpO", &name, &overload, &PyTuple_Type, &kinds, &returned, &container, &single,
                          &slow)) {
        return nullptr;
    }
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const auto& schema = op.schema().arguments();
    TORCH_CHECK_VALUE(PyTuple_GET_SIZE(kinds) == static_cast<Py_ssize_t>(schema.size()), name, " takes ", schema.size(),
                      " arguments, got kinds for ", PyTuple_GET_SIZE(kinds));
    auto* const call = PyObject_New(Call, call_type);
    if (call == nullptr) return nullptr;
    call->op = new c10::OperatorHandle(op);
    call->arguments = new std::vector<Argument>();
    call->positional = 0;
    call->returned = returned;
    call->container = Py_NewRef(container);
    call->single = single != 0;
    call->slow = Py_NewRef(slow);
    for (size_t i = 0; i < schema.size(); ++i) {
        int kind = 0, optional = 0;
        PyObject* words = nullptr;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(kinds, static_cast<Py_ssize_t>(i)), "ipO!", &kind, &optional,
                              &PyTuple_Type, &words)) {
            Py_DECREF(call);
            return nullptr;
        }
        Argument argument{PyUnicode_InternFromString(schema[i].name().c_str()),
                          static_cast<Kind>(kind),
                          optional != 0,
                          schema[i].default_value(),
                          {}};
        for (Py_ssize_t w = 0; w < PyTuple_GET_SIZE(words); ++w) {
            Py_ssize_t size = 0;
            const char* const word = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(words, w), &size);
            if (word == nullptr) {
                Py_DECREF(call);
                return nullptr;
            }
            argument.words.emplace_back(std::string(word, static_cast<size_t>(size)));
        }
        call->arguments->push_back(std::move(argument));
        if (!schema[i].kwarg_only()) ++call->positional;
    }
    return reinterpret_cast<PyObject*>(call);
    END_HANDLE_TH_ERRORS
}

// install(type, dictionary): calls of this type's instances take the short way where they have one. The type keeps its
// __call__, which is what tracers read.
PyObject* install(PyObject*, PyObject* args) {
    PyObject *type = nullptr, *dictionary = nullptr;
    if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &type, &PyDict_Type, &dictionary)) return nullptr;
    Py_XDECREF(compiling);
    compiling = Py_NewRef(dictionary);
    reinterpret_cast<PyTypeObject*>(type)->tp_call = call_operator;
    PyType_Modified(reinterpret_cast<PyTypeObject*>(type));
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"make", make, METH_VARARGS, nullptr}, {"install", install, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "opwright_call", nullptr, -1, methods};

}  // namespace

PyMODINIT_FUNC PyInit_opwright_call() {
    compiling_word = PyUnicode_InternFromString("_is_compiling_flag");
    short_word = PyUnicode_InternFromString("_short");
    slow_word = PyUnicode_InternFromString("_call");
    call_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (call_type == nullptr) return nullptr;
    PyObject* const made = PyModule_Create(&module);
    if (made == nullptr || PyModule_AddStringConstant(made, "kinds", OPWRIGHT_NAMES(OPWRIGHT_KINDS)) == 0) return made;
    Py_DECREF(made);
    return nullptr;
}
