/* SPDX-License-Identifier: MIT */
/* Calls that break what a contract header says of its numbers: asserts must end them.
 *
 * A family's BREACHES is a list of X(name) of which the first is NOTHING; its `call` calls the
 * family's entries with numbers of which that one alone is wrong. */
#ifndef OSW_TESTS_DRIVER_CONTRACT_H
#define OSW_TESTS_DRIVER_CONTRACT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct driver_contract {
    const char *const *breaches; /* by their numbers, then NULL */
    void (*call)(int breach);
} driver_contract;

#define DRIVER_BREACH_ID(name)   name,
#define DRIVER_BREACH_NAME(name) #name,

/* Defines the contract of a family, behind its BREACHES and its `call`. */
#define DRIVER_CONTRACT(family)                                                                    \
    static const char *const breaches[] = {BREACHES(DRIVER_BREACH_NAME) NULL};                     \
    const driver_contract driver_##family##_contract = {breaches, call}

/* Whether each breach ends a process by SIGABRT, and NOTHING does not; prints what is not so. Of a
 * build without asserts none does. */
bool driver_contract_holds(const char *family, const driver_contract *contract);

#endif
