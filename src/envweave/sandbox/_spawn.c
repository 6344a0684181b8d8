/* Spawns a session: fork, then a list of system calls, with no Python in between.
 *
 * `inside/spawn.py` builds the list, and makes the same calls one by one where this extension was
 * not built. No policy is decided here.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

/* The fields of a `Syscall` of `walls/calls.py`, in order. */
enum { NUMBER, ARGUMENTS, RESULT, IGNORED_ERRNO, ZEROED };

#define MAX_ARGUMENTS 6
#define MAX_CALLS 128

struct call {
    long number;
    long arguments[MAX_ARGUMENTS];
    long result; /* -1: anything but an error */
    int ignored_errno;
    const char *zeroed;
    Py_ssize_t zeroed_size;
};

/* Convert an integer to itself, and memory to its address. The address stays valid: the caller holds
 * a reference, and no bytearray is resized meanwhile, since the GIL is never released. */
static int
read_argument(PyObject *value, long *argument)
{
    if (PyBytes_Check(value)) {
        *argument = (long)PyBytes_AsString(value);
    } else if (PyByteArray_Check(value)) {
        *argument = (long)PyByteArray_AsString(value);
    } else {
        *argument = PyLong_AsLong(value);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int
read_call(PyObject *item, struct call *call)
{
    if (!PyTuple_Check(item) || PyTuple_Size(item) <= ZEROED) {
        PyErr_SetString(PyExc_TypeError, "A call must be a Syscall tuple.");
        return -1;
    }
    call->number = PyLong_AsLong(PyTuple_GetItem(item, NUMBER));
    call->ignored_errno = (int)PyLong_AsLong(PyTuple_GetItem(item, IGNORED_ERRNO));
    PyObject *result = PyTuple_GetItem(item, RESULT);
    call->result = result == Py_None ? -1 : PyLong_AsLong(result);
    if (PyErr_Occurred()) {
        return -1;
    }
    PyObject *arguments = PyTuple_GetItem(item, ARGUMENTS);
    Py_ssize_t count = PyTuple_Check(arguments) ? PyTuple_Size(arguments) : -1;
    if (count < 0 || count > MAX_ARGUMENTS) {
        PyErr_SetString(PyExc_TypeError, "The arguments of a call must be a tuple of at most six.");
        return -1;
    }
    for (Py_ssize_t at = 0; at < MAX_ARGUMENTS; at++) {
        call->arguments[at] = 0;
        if (at < count && read_argument(PyTuple_GetItem(arguments, at), &call->arguments[at]) < 0) {
            return -1;
        }
    }
    PyObject *zeroed = PyTuple_GetItem(item, ZEROED);
    call->zeroed = NULL;
    call->zeroed_size = 0;
    if (zeroed != Py_None) {
        if (!PyByteArray_Check(zeroed)) {
            PyErr_SetString(PyExc_TypeError, "`zeroed` must be a bytearray.");
            return -1;
        }
        call->zeroed = PyByteArray_AsString(zeroed);
        call->zeroed_size = PyByteArray_Size(zeroed);
    }
    return 0;
}

/* Return how many calls were read; -1 for an error. */
static Py_ssize_t
read_calls(PyObject *list, struct call *calls)
{
    Py_ssize_t count = PyList_Check(list) ? PyList_Size(list) : -1;
    if (count < 0 || count > MAX_CALLS) {
        PyErr_Format(PyExc_TypeError, "The calls must be a list of at most %d.", MAX_CALLS);
        return -1;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        if (read_call(PyList_GetItem(list, at), &calls[at]) < 0) {
            return -1;
        }
    }
    return count;
}

/* Make a call. Return 0, or its errno; EPERM if the outcome is not the expected one. */
static int
make(const struct call *call)
{
    const long *args = call->arguments;
    long result = syscall(call->number, args[0], args[1], args[2], args[3], args[4], args[5]);
    if (result == -1) {
        return errno == call->ignored_errno ? 0 : errno;
    }
    if (call->result != -1 && result != call->result) {
        return EPERM;
    }
    for (Py_ssize_t at = 0; at < call->zeroed_size; at++) {
        if (call->zeroed[at] != 0) {
            return EPERM;
        }
    }
    return 0;
}

/* Fork by the system call, for its flags. Like the C library's own `fork`, have the kernel store the
 * new thread id where the library keeps it, if the kernel reveals where that is. */
static long
fork_into(unsigned long flags, int *process)
{
    int *thread = NULL;
    if (prctl(PR_GET_TID_ADDRESS, &thread, 0, 0, 0) == 0 && thread != NULL) {
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
    }
    flags |= CLONE_PIDFD | SIGCHLD;
#if defined(__aarch64__)
    return syscall(SYS_clone, flags, 0, process, 0, thread);
#else
    return syscall(SYS_clone, flags, 0, process, thread, 0);
#endif
}

PyDoc_STRVAR(spawn_doc,
    "spawn(flags, calls, alone, /)\n--\n\n"
    "Fork, and make the calls in the child up to the first that fails.\n\n"
    "`alone`: whether this is the only thread; then the child has nothing to clean up, and continues\n"
    "like its parent. Returns the child's process id, its pidfd, -1 and 0; in the child 0, -1, the\n"
    "index of the call that failed (-1 if none) and its errno.");

static PyObject *
spawn(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    /* On the stack, which a new process can read without a page fault. */
    struct call calls[MAX_CALLS];
    unsigned long flags;
    PyObject *list;
    int alone;
    if (!PyArg_ParseTuple(arguments, "kOp:spawn", &flags, &list, &alone)) {
        return NULL;
    }
    Py_ssize_t count = read_calls(list, calls);
    if (count < 0) {
        return NULL;
    }
    int process = -1, failed = 0;
    Py_ssize_t at = 0;
    PyOS_BeforeFork();
    long pid = fork_into(flags, &process);
    if (pid == 0) {
        while (at < count && (failed = make(&calls[at])) == 0) {
            at++;
        }
        if (alone) {
            PyOS_AfterFork_Parent();
        } else {
            PyOS_AfterFork_Child();
        }
        PyObject *outcome = Py_BuildValue("iini", 0, -1, at < count ? at : (Py_ssize_t)-1, failed);
        if (outcome == NULL) {
            _exit(1); /* or it would continue as a second template */
        }
        return outcome;
    }
    failed = errno;
    PyOS_AfterFork_Parent();
    if (pid < 0) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("liii", pid, process, -1, 0);
}

static PyMethodDef functions[] = {
    {"spawn", spawn, METH_VARARGS, spawn_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "envweave.sandbox._spawn",
    .m_doc = "Spawns a session. See `envweave.sandbox.inside.spawn`.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__spawn(void)
{
    return PyModuleDef_Init(&definition);
}
