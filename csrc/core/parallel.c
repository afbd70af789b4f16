/* SPDX-License-Identifier: MIT */
#include "core/parallel.h"

#include "core/torch_abi.h"

#include <string.h>

#if !defined(_WIN32)
#    include <dlfcn.h>
#endif

static __typeof__(&torch_parallel_for) parallel_for;
static __typeof__(&torch_get_num_threads) get_num_threads;

#if !defined(_WIN32)

/* A data pointer may not be cast to a function pointer in ISO C; POSIX gives both one
 * representation. */
static void copy_symbol(void *library, const char *name, void *function, size_t size)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, size);
}

/* Torch may be imported after opswap's extension: look again until it is there. */
static void find_torch(void)
{
#    if defined(__APPLE__)
    void *library = dlopen("libtorch_cpu.dylib", RTLD_NOLOAD | RTLD_LAZY);
#    else
    void *library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
#    endif
    if (!library)
        return;
    copy_symbol(library, "torch_get_num_threads", &get_num_threads, sizeof get_num_threads);
    copy_symbol(library, "torch_parallel_for", &parallel_for, sizeof parallel_for);
}

#else

static void find_torch(void)
{
}

#endif

void osw_parallel_for(int64_t count, int64_t grain, osw_body *body, void *context)
{
    if (count <= 0)
        return;
    if (!parallel_for)
        find_torch();
    /* A non-zero status means that no part ran: torch checks its arguments before it starts. */
    if (count <= grain || !parallel_for || parallel_for(0, count, grain, body, context) != 0)
        body(0, count, context);
}

int osw_parallel_threads(void)
{
    uint32_t threads = 1;
    if (!get_num_threads)
        find_torch();
    return get_num_threads && get_num_threads(&threads) == 0 ? (int)threads : 1;
}
