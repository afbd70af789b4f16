/* SPDX-License-Identifier: MIT */
/* What stands for core/parallel.c in the driver: threads of POSIX, or, with one thread, parts of
 * all lengths one after another. */
#include "core/parallel.h"
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_THREADS = 16 };

int driver_threads = 1;
int driver_stack;

typedef struct driver_part {
    osw_body *body;
    int64_t begin, end;
    void *context;
} driver_part;

static void *run_part(void *argument)
{
    const driver_part *part = argument;
    part->body(part->begin, part->end, part->context);
    return NULL;
}

/* Memory for the stack of thread `number`, below which any access ends the driver. */
static void *small_stack(int64_t number, size_t size)
{
    static char *stacks[MOST_THREADS];
    const size_t guard = 256 << 10; /* no frame of a kernel reaches beyond */
    if (!stacks[number]) {
        char *memory = mmap(NULL, guard + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory + guard, size, PROT_READ | PROT_WRITE) != 0) {
            perror("driver");
            exit(2);
        }
        stacks[number] = memory + guard;
    }
    return stacks[number];
}

static void start(pthread_t *thread, int64_t number, driver_part *part)
{
    const size_t size = (size_t)driver_stack << 10;
    pthread_attr_t attributes;
    int failed = pthread_attr_init(&attributes);
    if (!failed && size)
        failed = pthread_attr_setstack(&attributes, small_stack(number, size), size);
    if (!failed)
        failed = pthread_create(thread, &attributes, run_part, part);
    if (failed) {
        fprintf(stderr, "driver: no thread: %s\n", strerror(failed));
        exit(2);
    }
    pthread_attr_destroy(&attributes);
}

static void run_alone(int64_t begin, int64_t end, osw_body *body, void *context)
{
    driver_part part = {body, begin, end, context};
    if (!driver_stack) {
        run_part(&part);
        return;
    }
    pthread_t thread;
    start(&thread, 0, &part);
    pthread_join(thread, NULL);
}

/* The whole in a third of the calls, else up to three parts. */
static void run_serially(int64_t count, osw_body *body, void *context)
{
    int64_t begin = 0;
    for (int cuts = (int)driver_below(3); cuts > 0 && begin < count; cuts--) {
        const int64_t end = begin + driver_below(count - begin + 1);
        if (end > begin)
            run_alone(begin, end, body, context);
        begin = end;
    }
    if (begin < count)
        run_alone(begin, count, body, context);
}

void osw_parallel_for(int64_t count, int64_t grain, osw_body *body, void *context)
{
    pthread_t threads[MOST_THREADS];
    driver_part parts[MOST_THREADS];
    const int64_t wanted = driver_threads < MOST_THREADS ? driver_threads : MOST_THREADS;
    const int64_t number = count < wanted ? count : wanted;
    (void)grain; /* parts may be smaller */
    if (number <= 1) {
        run_serially(count, body, context);
        return;
    }
    for (int64_t i = 0; i < number; i++) {
        parts[i] = (driver_part){body, i * count / number, (i + 1) * count / number, context};
        start(&threads[i], i, &parts[i]);
    }
    for (int64_t i = 0; i < number; i++)
        pthread_join(threads[i], NULL);
}

int osw_parallel_threads(void)
{
    return driver_threads;
}
