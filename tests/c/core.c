/* SPDX-License-Identifier: MIT */
/* What core does at its limits: whole numbers, and the table of families. */
#include "core/ints.h"
#include "core/isa.h"

#include <stdio.h>

enum { MOST = 64 };

static int calls[MOST];
static osw_isa chosen[MOST];
static int failed;

static void check(bool holds, const char *what)
{
    if (!holds)
        printf("%s\n", what);
    failed |= !holds;
}

#define X(n)                                                                                       \
    static void select_##n(osw_isa isa)                                                            \
    {                                                                                              \
        calls[0##n]++;                                                                             \
        chosen[0##n] = isa;                                                                        \
    }
#define EIGHT(n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#define EACH     EIGHT(0) EIGHT(1) EIGHT(2) EIGHT(3) EIGHT(4) EIGHT(5) EIGHT(6) EIGHT(7)
EACH
#undef X

#define X(n) select_##n,
    static void (*const families[MOST])(osw_isa) = {EACH};
#undef X

static void check_integers(void)
{
    const int64_t most = INT64_MAX;
    check(osw_ceil(0, 1) == 0 && osw_ceil(0, most) == 0, "0 / b");
    check(osw_ceil(most, 1) == most && osw_ceil(1, most) == 1, "the greatest number, and 1");
    check(osw_ceil(most - 1, 2) == most / 2, "the greatest even number");
    check(osw_ceil(most, most) == 1 && osw_ceil(most - 1, most) == 1, "a and b at the limit");
    check(osw_ceil(most, 2) == most / 2 + 1, "the greatest number, halved");
    check(osw_round_up(0, 64) == 0 && osw_round_up(1, 64) == 64, "small multiples");
    check(osw_round_up(most - 63, 64) == most - 63, "the greatest multiple of 64");
    check(osw_min_int(INT64_MIN, most) == INT64_MIN, "the least number");
    check(osw_max_int(INT64_MIN, most) == most, "the greatest of two");
}

/* As many as there is room for are told of every change; one more is refused and never called. */
static void check_families(void)
{
    int count = 0;
    while (count < MOST && osw_isa_register(families[count]) == 0)
        count++;
    check(count > 0 && count < MOST, "a table without an end");
    check(calls[count] == 0, "a refused family was called");
    check(osw_isa_register(families[count]) == -1, "refused once, taken later");
    check(osw_isa_register(families[count - 1]) == 0, "a known family was refused");
    check(calls[count - 1] == 2, "a family is called at every registration");
    osw_isa_limit(OSW_ISA_SCALAR);
    for (int i = 0; i < count; i++)
        check(calls[i] == 2 + (i == count - 1) && chosen[i] == OSW_ISA_SCALAR, "not told");
    check(calls[count] == 0 && osw_isa_current() == OSW_ISA_SCALAR, "the limit");
}

int main(void)
{
    check_integers();
    check_families();
    return failed;
}
