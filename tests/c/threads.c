/* SPDX-License-Identifier: MIT */
/* What stands for core/parallel.c in the driver: threads of POSIX, or, with one thread, parts of
 * all lengths one after another. */
#include "core/parallel.h"
#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_THREADS = 16 };

int driver_threads = 1;

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

/* The whole in a third of the calls, else up to three parts. */
static void run_serially(int64_t count, osw_body *body, void *context)
{
    int64_t begin = 0;
    for (int cuts = (int)driver_below(3); cuts > 0 && begin < count; cuts--) {
        const int64_t end = begin + driver_below(count - begin + 1);
        if (end > begin)
            body(begin, end, context);
        begin = end;
    }
    if (begin < count)
        body(begin, count, context);
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
        if (pthread_create(&threads[i], NULL, run_part, &parts[i]) != 0) {
            perror("driver");
            exit(2);
        }
    }
    for (int64_t i = 0; i < number; i++)
        pthread_join(threads[i], NULL);
}

int osw_parallel_threads(void)
{
    return driver_threads;
}
