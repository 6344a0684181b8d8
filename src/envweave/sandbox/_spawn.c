/* The birth of a session in one go: fork, then a list of system calls, with no Python in between.
 *
 * What the calls are is decided in `inside/spawning.py`, which makes the same list one by one
 * where this extension was not built. Nothing of the policy is here.
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

/* A `Call` of `walls/calls.py`, as its fields come. */
enum { NUMBER, ARGUMENTS, RESULT, PARDONED, CLEARED };

#define MOST_ARGUMENTS 6
#define MOST_CALLS 128

struct call {
    long number;
    long arguments[MOST_ARGUMENTS];
    long result; /* -1: whatever is no error */
    int pardoned;
    const char *cleared;
    Py_ssize_t cleared_size;
};

/* Return an integer as it is, and memory as its address. It stays where it is: the caller holds it,
 * and nobody resizes a bytearray meanwhile, since the interpreter's lock is never let go. */
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
    if (!PyTuple_Check(item) || PyTuple_Size(item) <= CLEARED) {
        PyErr_SetString(PyExc_TypeError, "A call is a tuple of its number and what follows.");
        return -1;
    }
    call->number = PyLong_AsLong(PyTuple_GetItem(item, NUMBER));
    call->pardoned = (int)PyLong_AsLong(PyTuple_GetItem(item, PARDONED));
    PyObject *result = PyTuple_GetItem(item, RESULT);
    call->result = result == Py_None ? -1 : PyLong_AsLong(result);
    if (PyErr_Occurred()) {
        return -1;
    }
    PyObject *arguments = PyTuple_GetItem(item, ARGUMENTS);
    Py_ssize_t count = PyTuple_Check(arguments) ? PyTuple_Size(arguments) : -1;
    if (count < 0 || count > MOST_ARGUMENTS) {
        PyErr_SetString(PyExc_TypeError, "The arguments of a call are a tuple of at most six.");
        return -1;
    }
    for (Py_ssize_t at = 0; at < MOST_ARGUMENTS; at++) {
        call->arguments[at] = 0;
        if (at < count && read_argument(PyTuple_GetItem(arguments, at), &call->arguments[at]) < 0) {
            return -1;
        }
    }
    PyObject *cleared = PyTuple_GetItem(item, CLEARED);
    call->cleared = NULL;
    call->cleared_size = 0;
    if (cleared != Py_None) {
        if (!PyByteArray_Check(cleared)) {
            PyErr_SetString(PyExc_TypeError, "What a call clears is a bytearray.");
            return -1;
        }
        call->cleared = PyByteArray_AsString(cleared);
        call->cleared_size = PyByteArray_Size(cleared);
    }
    return 0;
}

/* Return how many calls were read; -1 for an error. */
static Py_ssize_t
read_calls(PyObject *list, struct call *calls)
{
    Py_ssize_t count = PyList_Check(list) ? PyList_Size(list) : -1;
    if (count < 0 || count > MOST_CALLS) {
        PyErr_Format(PyExc_TypeError, "The calls are a list of at most %d.", MOST_CALLS);
        return -1;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        if (read_call(PyList_GetItem(list, at), &calls[at]) < 0) {
            return -1;
        }
    }
    return count;
}

/* Make a call. Return 0, or the errno that it failed with; EPERM if it came to something else than
 * it must. */
static int
make(const struct call *call)
{
    const long *given = call->arguments;
    long result = syscall(call->number, given[0], given[1], given[2], given[3], given[4], given[5]);
    if (result == -1) {
        return errno == call->pardoned ? 0 : errno;
    }
    if (call->result != -1 && result != call->result) {
        return EPERM;
    }
    for (Py_ssize_t at = 0; at < call->cleared_size; at++) {
        if (call->cleared[at] != 0) {
            return EPERM;
        }
    }
    return 0;
}

/* Fork by the system call, for its flags. As the C library's own `fork`, let the kernel write the
 * new thread's number where the library keeps it, if the kernel tells where that is. */
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
    "`alone` says that this is the only thread: then the child has nothing to forget, and goes on\n"
    "as its parent does. Returns the child's process id, a descriptor of it, -1 and 0; in the\n"
    "child 0, -1, the index of the call that failed (-1 if none) and its errno.");

static PyObject *
spawn(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    /* On the stack, which a new process need not copy to read. */
    struct call calls[MOST_CALLS];
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
        PyObject *told = Py_BuildValue("iini", 0, -1, at < count ? at : (Py_ssize_t)-1, failed);
        if (told == NULL) {
            _exit(1); /* or it would go on as a second template */
        }
        return told;
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
    .m_doc = "The birth of a session in one go. See `envweave.sandbox.inside.spawn`.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__spawn(void)
{
    return PyModuleDef_Init(&definition);
}
