/* SPDX-License-Identifier: MIT */
#include "driver_contract.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The status of a process of its own that makes the call, without a word and without a core. */
static int status_of(const driver_contract *contract, int breach)
{
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int nowhere = open("/dev/null", O_WRONLY);
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(nowhere, STDERR_FILENO);
        contract->call(breach);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("driver");
        exit(2);
    }
    return status;
}

bool driver_contract_holds(const char *family, const driver_contract *contract)
{
    int failed = 0, breach = 0;
    for (; contract->breaches[breach]; breach++) {
        const int status = status_of(contract, breach);
        const bool aborts = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
        if (breach ? aborts : status == 0)
            continue;
        failed++;
        printf("%s: %s ends with status %d, signal %d\n", family, contract->breaches[breach],
               WIFEXITED(status) ? WEXITSTATUS(status) : 0,
               WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
    if (!failed)
        printf("%s: %d breaches of the contract are asserted\n", family, breach - 1);
    return !failed;
}
