/* Spawns sessions: fork, then a list of system calls, with no Python in between.
 *
 * `inside/spawn.py` builds the list, and makes the same calls one by one where this extension was
 * not built. No policy is decided here.
 *
 * `serve` is the template's loop for the orders that only spawn. It touches no object of the
 * interpreter: each page that the template writes to after a fork is copied.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

/* The fields of a `Syscall` of `walls/kernel.py`, in order. */
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
    "`alone`: whether this is the only thread; then no fork hooks are run, since the child has nothing\n"
    "to clean up. Returns the child's process id, its pidfd, -1 and 0; in the child 0, -1, the\n"
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
    if (!alone) {
        PyOS_BeforeFork();
    }
    long pid = fork_into(flags, &process);
    if (pid == 0) {
        while (at < count && (failed = make(&calls[at])) == 0) {
            at++;
        }
        if (!alone) {
            PyOS_AfterFork_Child();
        }
        PyObject *outcome = Py_BuildValue("iini", 0, -1, at < count ? at : (Py_ssize_t)-1, failed);
        if (outcome == NULL) {
            _exit(1); /* or it would continue as a second template */
        }
        return outcome;
    }
    failed = errno;
    if (!alone) {
        PyOS_AfterFork_Parent();
    }
    if (pid < 0) {
        errno = failed;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("liii", pid, process, -1, 0);
}

/* A compact order of `protocol/orders.py`: this, and a user id for each session. Attached are
 * `each` descriptors for each. The report is this, and a process id for each; attached are pidfds. */
struct compact {
    uint8_t mark;
    uint8_t count;
    uint8_t each;
    uint8_t has_user;
    int32_t numbers[];
};

#define COMPACT_MARK 0xC1
#define MAX_SPAWNED 16
#define MAX_DESCRIPTORS 64
#define MAX_PLACES 16
#define MAX_EVENTS 256
#define MAX_OPTIONS 256

/* An argument of a call that differs between sessions. */
struct place {
    int32_t call;
    int32_t argument;
    int32_t source; /* the index of a descriptor, or one of these: */
};
enum { THE_USER = -1, THE_OPTIONS = -2 };

/* A session that was spawned, or a process that ended. */
struct event {
    int32_t pid;
    int32_t status; /* as from `waitpid`; -1: it was spawned */
};

struct loop {
    int control;
    int host;
    int ended;
    int each;
    int has_user;
    unsigned long flags;
    const char *options;
    struct call calls[MAX_CALLS];
    Py_ssize_t call_count;
    struct place places[MAX_PLACES];
    Py_ssize_t place_count;
    struct event events[MAX_EVENTS];
    Py_ssize_t event_count;
};

/* Record what ended. Return whether there is room for more events. */
static int
reap(struct loop *loop)
{
    int status;
    pid_t pid;
    while (loop->event_count < MAX_EVENTS && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
        loop->events[loop->event_count++] = (struct event){(int32_t)pid, status};
    }
    return loop->event_count <= MAX_EVENTS - MAX_SPAWNED;
}

/* Fork one session, which makes the calls. Return its process id, or -1; in the session 0, with the
 * index of the call that failed, if it is below their count, and its errno. */
static long
spawn_one(struct loop *loop, const int *given, int32_t user, int *process, Py_ssize_t *at,
          int *failed)
{
    char options[MAX_OPTIONS];
    int size = snprintf(options, sizeof options, loop->options, user, user);
    if (size < 0 || size >= (int)sizeof options) {
        errno = EINVAL;
        return -1;
    }
    for (Py_ssize_t i = 0; i < loop->place_count; i++) {
        const struct place *place = &loop->places[i];
        long *argument = &loop->calls[place->call].arguments[place->argument];
        if (place->source == THE_USER) {
            *argument = user;
        } else if (place->source == THE_OPTIONS) {
            *argument = (long)options;
        } else {
            *argument = given[place->source];
        }
    }
    long pid = fork_into(loop->flags, process);
    if (pid == 0) {
        while (*at < loop->call_count && (*failed = make(&loop->calls[*at])) == 0) {
            (*at)++;
        }
    }
    return pid;
}

/* Send a report with descriptors; return whether the host got it. */
static int
report(int control, const void *data, size_t size, const int *attached, int count)
{
    char room[CMSG_SPACE(sizeof(int) * MAX_SPAWNED)] __attribute__((aligned(8))) = {0};
    struct iovec part = {(void *)data, size};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = room,
        .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count),
    };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
    memcpy(CMSG_DATA(head), attached, sizeof(int) * (size_t)count);
    ssize_t sent;
    do {
        sent = sendmsg(control, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent >= 0;
}

static void
close_all(const int *descriptors, int count)
{
    for (int at = 0; at < count; at++) {
        close(descriptors[at]);
    }
}

/* Return to Python: with the events, whether an order waits to be read, and the error of one. */
static PyObject *
leave(const struct loop *loop, int has_order, int error)
{
    Py_ssize_t size = loop->event_count * (Py_ssize_t)sizeof(struct event);
    return Py_BuildValue("y#ii", (const char *)loop->events, size, has_order, error);
}

/* Read the parameters of `serve`. */
static int
read_loop(PyObject *arguments, struct loop *loop)
{
    PyObject *calls;
    const char *places;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "iiikOy#iis:serve", &loop->control, &loop->host, &loop->ended,
                          &loop->flags, &calls, &places, &size, &loop->each, &loop->has_user,
                          &loop->options)) {
        return -1;
    }
    loop->call_count = read_calls(calls, loop->calls);
    if (loop->call_count < 0) {
        return -1;
    }
    loop->event_count = 0;
    loop->place_count = size / (Py_ssize_t)sizeof(struct place);
    if (loop->place_count > MAX_PLACES || size % (Py_ssize_t)sizeof(struct place) != 0) {
        PyErr_SetString(PyExc_ValueError, "There are too many places.");
        return -1;
    }
    memcpy(loop->places, places, (size_t)size);
    for (Py_ssize_t at = 0; at < loop->place_count; at++) {
        const struct place *place = &loop->places[at];
        if (place->call < 0 || place->call >= loop->call_count || place->argument < 0 ||
            place->argument >= MAX_ARGUMENTS || place->source < THE_OPTIONS ||
            place->source >= loop->each) {
            PyErr_SetString(PyExc_ValueError, "A place is outside of the calls.");
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(serve_doc,
    "serve(control, host, ended, flags, calls, places, each, has_user, options, /)\n--\n\n"
    "Carry out compact orders, until there is something else to do.\n\n"
    "`control`: the socket of orders. `host`: readable when the host is gone. `ended`: a signalfd of\n"
    "SIGCHLD. `places`: the arguments that differ between sessions, as `struct place`. `each`: how\n"
    "many descriptors a session gets. `options`: the format of the mount options.\n\n"
    "Returns the events since the call as `struct event`, whether another order waits to be read, and\n"
    "the errno of an order that failed, or 0. In a session it returns the index of the call that\n"
    "failed (-1 if none) and its errno. Only for a process with one thread.");

static PyObject *
serve(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    /* On the stack, which a new process can read without a page fault. */
    struct loop loop;
    char data[1024] __attribute__((aligned(8))); /* compact orders are shorter */
    if (read_loop(arguments, &loop) < 0) {
        return NULL;
    }
    for (;;) {
        struct pollfd polled[3] = {
            {loop.control, POLLIN, 0}, {loop.host, POLLIN, 0}, {loop.ended, POLLIN, 0}};
        if (poll(polled, 3, -1) < 0) {
            if (errno == EINTR) {
                continue;
            }
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        if (polled[1].revents) {
            return leave(&loop, 0, 0);
        }
        if (polled[2].revents) {
            while (read(loop.ended, data, sizeof data) > 0) {
            }
            if (!reap(&loop)) {
                return leave(&loop, 0, 0);
            }
        }
        if (!polled[0].revents) {
            continue;
        }
        struct compact *order = (struct compact *)data;
        ssize_t size;
        do {
            size = recv(loop.control, data, sizeof data, MSG_PEEK | MSG_TRUNC);
        } while (size < 0 && errno == EINTR);
        if (size < (ssize_t)sizeof *order || order->mark != COMPACT_MARK ||
            order->count == 0 || order->count > MAX_SPAWNED || order->each != loop.each ||
            order->has_user != loop.has_user ||
            size != (ssize_t)(sizeof *order + order->count * sizeof(int32_t))) {
            /* Not an order for this loop: Python reads it. */
            return leave(&loop, 1, 0);
        }
        char room[CMSG_SPACE(sizeof(int) * MAX_DESCRIPTORS)] __attribute__((aligned(8)));
        struct iovec part = {data, sizeof data};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
        do {
            size = recvmsg(loop.control, &message, 0);
        } while (size < 0 && errno == EINTR);
        if (size < 0) {
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        int given[MAX_DESCRIPTORS], given_count = 0;
        for (struct cmsghdr *one = CMSG_FIRSTHDR(&message); one != NULL;
             one = CMSG_NXTHDR(&message, one)) {
            int count = (int)((one->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(given + given_count, CMSG_DATA(one), sizeof(int) * (size_t)count);
            given_count += count;
        }
        int count = order->count;
        if (given_count != count * loop.each) {
            /* The kernel drops what does not fit. */
            close_all(given, given_count);
            return leave(&loop, 0, EMFILE);
        }
        int processes[MAX_SPAWNED], made = 0, failed = 0;
        char answer[sizeof(struct compact) + MAX_SPAWNED * sizeof(int32_t)]
            __attribute__((aligned(8)));
        struct compact *spawned = (struct compact *)answer;
        *spawned = (struct compact){COMPACT_MARK, (uint8_t)count, 0, 0};
        while (made < count) {
            Py_ssize_t at = 0;
            int process = -1;
            long pid = spawn_one(&loop, given + made * loop.each, order->numbers[made], &process,
                                 &at, &failed);
            if (pid == 0) {
                PyObject *outcome =
                    Py_BuildValue("ni", at < loop.call_count ? at : (Py_ssize_t)-1, failed);
                if (outcome == NULL) {
                    _exit(1); /* or it would continue as a second template */
                }
                return outcome;
            }
            if (pid < 0) {
                break;
            }
            processes[made] = process;
            spawned->numbers[made++] = (int32_t)pid;
            loop.events[loop.event_count++] = (struct event){(int32_t)pid, -1};
        }
        if (made < count) { /* the host learns of none of them */
            failed = errno;
            for (int at = 0; at < made; at++) {
                kill((pid_t)spawned->numbers[at], SIGKILL);
            }
            close_all(processes, made);
            close_all(given, given_count);
            return leave(&loop, 0, failed);
        }
        size_t answer_size = sizeof *spawned + sizeof(int32_t) * (size_t)count;
        if (!report(loop.control, answer, answer_size, processes, count)) {
            _exit(0); /* the host is gone, and the kernel kills the sessions */
        }
        close_all(processes, count);
        close_all(given, given_count);
        if (!reap(&loop)) {
            return leave(&loop, 0, 0);
        }
    }
}

#define HELPER_STACK (1 << 16)

struct helper {
    const struct call *calls;
    Py_ssize_t count;
    Py_ssize_t at;
    int failed;
};

static int
run_helper(void *argument)
{
    struct helper *helper = argument;
    while (helper->at < helper->count &&
           (helper->failed = make(&helper->calls[helper->at])) == 0) {
        helper->at++;
    }
    _exit(0);
}

PyDoc_STRVAR(perform_in_helper_doc,
    "perform_in_helper(calls, /)\n--\n\n"
    "Make the calls, up to the first that fails, in a process that ends with them. It shares this\n"
    "one's memory and descriptors, but neither its namespaces nor its folder. Returns the index of\n"
    "the call that failed (-1 if none) and its errno. Only for a process with one thread.");

static PyObject *
perform_in_helper(PyObject *Py_UNUSED(module), PyObject *list)
{
    static char stack[HELPER_STACK] __attribute__((aligned(16)));
    struct call calls[MAX_CALLS];
    struct helper helper = {calls, read_calls(list, calls), 0, 0};
    if (helper.count < 0) {
        return NULL;
    }
    /* In a new PID namespace, because the gate would refuse a fork into this one. This process
     * waits until the other is gone, as for `vfork`. */
    pid_t pid = clone(run_helper, stack + sizeof stack,
                      CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_NEWPID | SIGCHLD, &helper);
    if (pid < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    return Py_BuildValue("ni", helper.at < helper.count ? helper.at : (Py_ssize_t)-1,
                         helper.failed);
}

static PyMethodDef functions[] = {
    {"perform_in_helper", perform_in_helper, METH_O, perform_in_helper_doc},
    {"spawn", spawn, METH_VARARGS, spawn_doc},
    {"serve", serve, METH_VARARGS, serve_doc},
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
