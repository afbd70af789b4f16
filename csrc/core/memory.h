/* SPDX-License-Identifier: MIT */
/* Switches of the process that decide what memory and tiny numbers cost. */
#ifndef OSW_CORE_MEMORY_H
#define OSW_CORE_MEMORY_H

/* Keep freed blocks for the next allocation (1), or give large ones back to the system (0). 0 if
 * the C library has no such switch. */
int osw_memory_reuse(int on);

/* Treat denormal numbers as zero, as operands and as results (1), or compute with them (0), in this
 * thread and in those of torch's pool that work for it. Returns the number of threads that are
 * known to be reached: fewer than osw_parallel_threads() if some could not be reached
 * within a second; 0 if the processor has no such switch. */
int osw_memory_flush(int on);

/* Save whether each of these threads flushes, and restore it: one save for one restore, with any
 * calls of osw_memory_flush between. A thread that has saved nothing is left as it is. Both return
 * the number of threads reached. */
int osw_memory_flush_save(void);
int osw_memory_flush_restore(void);

#endif
